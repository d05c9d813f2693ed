"""Where a cluster is, as a command of the same user learned it through Ray: joining Ray takes two
seconds, reading a file does not, and a process without Ray can read it, too.

    <temporary directory>/rmq_ray-heads-<uid>/<hash>.cluster.json   of one Ray and cluster, 0600

A name server must prove the cluster's secret before what was remembered counts: of a cluster that
was stopped, or started anew, Ray is asked, and what it says is remembered; nothing of an account
is. Called by: the command line, and ``discovery`` where a process has not joined Ray.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits, Tls
from rmq_ray.errors import ClusterError, ConfigError, RmqError
from rmq_ray.model.ids import Address
from rmq_ray.ports import ClusterAddress

if TYPE_CHECKING:
    from rmq_ray.actors.access_keys import AccountProof
    from rmq_ray.actors.discovery import RayDiscovery

PROOF_MS = 500
"""How long a name server may take to prove that it is the cluster's."""


def note(directory: Path, ray_address: str, cluster: str) -> Path:
    """The file of this cluster in this Ray."""
    name = hashlib.sha256(f"{ray_address}\0{cluster}".encode()).hexdigest()[:16]
    return directory / f"{name}.cluster.json"


def directory_of_user() -> Path:
    """What commands of this user write down for later ones. ``ClusterError`` where somebody else
    could write there.
    """
    directory = Path(tempfile.gettempdir()) / f"rmq_ray-heads-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()  # not what a link leads to
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise ClusterError(
            f"{directory} belongs to another user, or others may write there: remove it, or set "
            f"TMPDIR to a directory of your own",
            str(directory),
        )
    return directory


def find(cluster: str) -> ClusterAddress | None:
    """The cluster of this name that a command has met on this machine, and that still answers; None
    where there is none. ``ConfigError`` where several do.
    """
    notes = (read(path) for path in directory_of_user().glob("*.cluster.json"))
    met = {told.secret: told for told in notes if told is not None and told.cluster == cluster}
    found = [told for told in met.values() if answers(told)]
    if len(found) > 1:
        servers = " and ".join(";".join(told.name_servers) for told in found)
        raise ConfigError(
            f"several clusters {cluster!r} run on this machine, with the name servers {servers}: "
            f"say which one is meant, by name_servers= and secret=, or join its Ray by ray.init()",
            cluster,
        )
    return found[0] if found else None


class RememberedDiscovery:
    """A discovery that asks Ray only where it must. ``join``: joins Ray and returns the discovery
    of a member there; raises as it does. ``account``: whom the command acts as, None = a member.
    """

    def __init__(
        self, path: Path, join: Callable[[], RayDiscovery], account: AccountProof | None = None
    ) -> None:
        self._path = path
        self._join = join
        self._account = account
        self._found = read(path)

    def lookup(self) -> ClusterAddress:
        """As remembered where that still holds, else as Ray says; raises as that does."""
        if self._found is None or not answers(self._found):
            self._found = self._join().lookup()
            remember(self._path, self._found)
        return self._found if self._account is None else self._account.at(self._found)

    def broker_names(self) -> tuple[str, ...]:
        """All brokers of the cluster, those included that are down."""
        return self._join().broker_names()

    def stopped_brokers(self) -> Mapping[str, bool]:
        """Broker -> whether all of it was stopped on purpose."""
        return self._join().stopped_brokers()

    def ask_accounts(self, method: str, *arguments: Any) -> Any:
        """A call of the cluster's store of accounts."""
        joined = self._join()
        joined.take_account(self._account)
        return joined.ask_accounts(method, *arguments)


def answers(found: ClusterAddress) -> bool:
    """Whether one of the name servers is there and proves the secret."""
    # connections are loaded where one is made: every command loads this module
    from rmq_ray.remoting.connection import dial
    from rmq_ray.remoting.handshake import Credentials

    limits = replace(RemotingLimits(), connect_timeout_ms=PROOF_MS)
    credentials = Credentials(found.cluster, "name_server", found.secret)
    for server in found.name_servers:
        try:
            dial(Address.parse(server), credentials, limits, SYSTEM_CLOCK, found.tls).close()
        except RmqError:
            continue
        return True
    return False


def remember(path: Path, found: ClusterAddress) -> None:
    """For the next command; a directory that takes no file only makes that one slower."""
    if found.access_key or not found.secret:
        return
    tls = None if found.tls is None else asdict(found.tls)
    text = json.dumps(
        {
            "cluster": found.cluster,
            "name_servers": found.name_servers,
            "secret": found.secret.hex(),
            "tls": tls,
        }
    )
    beside = path.with_suffix(f".{os.getpid()}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)


def read(path: Path) -> ClusterAddress | None:
    """What was remembered; None where there is nothing, or nothing that can be read."""
    try:
        told = json.loads(path.read_text())
        tls = told["tls"]
        return ClusterAddress(
            told["cluster"],
            tuple(told["name_servers"]),
            bytes.fromhex(told["secret"]),
            None if tls is None else Tls(**tls),
        )
    except (OSError, ValueError, TypeError, KeyError, RmqError):
        return None
