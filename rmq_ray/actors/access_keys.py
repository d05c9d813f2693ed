"""Which account the clients of this process are: its access key, and what they prove it with.

    arguments of the call  >  what ``connect`` was given  >  RMQ_ACCESS_KEY and RMQ_SECRET_KEY
        >  the file that RMQ_CREDENTIALS names (accessKey, secretKey: the form of mqadmin's
           tools.yml)  >  none: no account

Decides where keys come from, and that a secret key ends here: what clients keep, pickle and hand
to tasks is ``AccountProof``, which serves for one cluster and tells nothing of the secret. Does not
decide what an account may do. Invariant: no secret in a ``repr``, a log or an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from rmq_ray.config import environment
from rmq_ray.errors import ConfigError, CredentialsInvalid, StoreError
from rmq_ray.ports import ClusterAddress
from rmq_ray.value import Value

ACCESS_KEY, SECRET_KEY, FILE = "RMQ_ACCESS_KEY", "RMQ_SECRET_KEY", "RMQ_CREDENTIALS"
_OTHERS = 0o077

log = logging.getLogger("rmq_ray.client")
_NAMES = ("accessKey", "secretKey")


class AccountProof(Value, frozen=True):
    """Proves one account to the servers of one cluster; what ``secret_key=`` takes, too, in place
    of the secret itself.
    """

    __secret__ = ("key",)

    access_key: str
    cluster: str
    key: bytes

    @classmethod
    def of(cls, access_key: str, secret_key: str, cluster: str) -> AccountProof:
        """``CredentialsInvalid`` for keys that no account can have."""
        from rmq_ray.protocol.access.accounts import Account

        try:
            key = Account(access_key, secret_key).handshake_key(cluster)
        except ConfigError as error:
            raise CredentialsInvalid(error.message) from None
        return cls(access_key, cluster, key)

    def at(self, where: ClusterAddress) -> ClusterAddress:
        """How this account reaches the cluster."""
        return replace(where, secret=self.key, access_key=self.access_key)


def keywords(account: AccountProof | None) -> dict[str, Any]:
    """Those that make a client in another process this account, without its secret key."""
    if account is None:
        return {}
    return {"access_key": account.access_key, "secret_key": account}


SecretKey = str | AccountProof
"""Of ``secret_key=``: what users write, or what their clients handed on."""


def given_account(access_key: str, secret_key: SecretKey, cluster: str) -> AccountProof | None:
    """Of a call's arguments; None = it names none. ``CredentialsInvalid`` for one of the two."""
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise CredentialsInvalid(
            f"{'secret_key' if secret_key else 'access_key'} is given without "
            f"{'access_key' if secret_key else 'secret_key'}: an account needs both",
        )
    if not isinstance(secret_key, AccountProof):
        return AccountProof.of(access_key, secret_key, cluster)
    if (secret_key.access_key, secret_key.cluster) != (access_key, cluster):
        raise CredentialsInvalid(
            f"this proves account {secret_key.access_key!r} to cluster {secret_key.cluster!r}, "
            f"not {access_key!r} to {cluster!r}: give the account's secret key",
            access_key,
        )
    return secret_key


def environments_account(cluster: str) -> AccountProof | None:
    """Of the environment, or of the file that it names; None = of neither."""
    access_key, secret_key = environment(ACCESS_KEY) or "", environment(SECRET_KEY) or ""
    if access_key and secret_key:
        return AccountProof.of(access_key, secret_key, cluster)
    if access_key or secret_key:
        there, missing = (ACCESS_KEY, SECRET_KEY) if access_key else (SECRET_KEY, ACCESS_KEY)
        raise CredentialsInvalid(
            f"the environment has {there} without {missing}: an account needs both", there
        )
    path = environment(FILE)
    return AccountProof.of(*_read(path), cluster) if path else None


def secret_key_of(access_key: str) -> str:
    """The secret key of an access key that was named alone: the environment's, else the file's,
    where it is of this account. ``CredentialsInvalid`` where there is none.
    """
    if secret_key := environment(SECRET_KEY):
        return secret_key
    path = environment(FILE)
    if path:
        theirs, secret_key = _read(path)
        if theirs == access_key:
            return secret_key
    raise CredentialsInvalid(
        f"the secret key of account {access_key!r:.80} is not known: put it into the environment "
        f"as {SECRET_KEY}, or with its accessKey into the file that {FILE} names",
        access_key,
    )


def _read(path: str) -> tuple[str, str]:
    """(access key, secret key) of a file like tools.yml. ``CredentialsInvalid`` for its faults."""
    from rmq_ray.files import FileSystem
    from rmq_ray.topology.yaml_text import read_yaml

    files = FileSystem()
    try:
        if files.mode(path) & _OTHERS:
            _warn_of_readers(path)
        found = read_yaml(files.read_whole(path), path)
    except (StoreError, ConfigError) as error:
        raise CredentialsInvalid(f"{FILE}: {error.message}", path) from None
    values = [found.get(name) if isinstance(found, Mapping) else None for name in _NAMES]
    for name, value in zip(_NAMES, values, strict=True):
        if value.__class__ not in (str, int) or not value:  # unquoted digits are a number
            raise CredentialsInvalid(
                f"{FILE}: {path} has no text under {name}; it must have the two lines "
                f'accessKey: "..." and secretKey: "..."',
                path,
            )
    return str(values[0]), str(values[1])


@cache
def _warn_of_readers(path: str) -> None:
    """Once a process: a file is read for each client."""
    log.warning("%s can be read by others than its owner: chmod 600 %s", path, path)
