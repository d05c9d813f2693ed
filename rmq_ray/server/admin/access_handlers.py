"""The accounts of the cluster as mqadmin changes and shows them: 50 to 54.

Decides: how RocketMQ's fields become a change, and that no answer has a secret. Does not decide who
may (``server.security.access_guard``), nor what holds where: the controller does, or this broker's
copy where there is none (``AccessCopy.change``). One loop calls everything. Invariant: a refused
change has changed nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rmq_ray.errors import ConfigError, NotAuthorized, RmqError
from rmq_ray.model.fastjson import dumps
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.accounts import Right
from rmq_ray.protocol.access.changes import (
    AccountChange,
    ChangeAuthor,
    DropAccount,
    PutAccount,
    SetWhiteAddresses,
)
from rmq_ray.protocol.access.rules import AccessRules, to_plain_acl
from rmq_ray.remoting.wire import body_json
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.security.access_copy import AccessCopy
from rmq_ray.server.security.access_guard import signer
from rmq_ray.server.security.rules_file import ACCESS_FILE

FAILED = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    RequestCode.DELETE_ACL_CONFIG: ResponseCode.DELETE_ACL_CONFIG_FAILED,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: (
        ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    ),
}
_SWITCH = {"true": True, "false": False}


class AccessHandlers:
    """``access``: this broker's copy of the accounts; None = its cluster has none."""

    def __init__(
        self, runtime: BrokerRuntime, access: AccessCopy | None, responder: Responder
    ) -> None:
        self._access = access
        self._identity = runtime.identity
        self._answer = responder.answer
        self._changing: set[asyncio.Task[None]] = set()

    def put_account(self, command: Command, peer: Peer) -> None:
        """UPDATE_AND_CREATE_ACL_CONFIG 50: what is not given stays as it is."""
        self._change(command, peer, self._put)

    def drop_account(self, command: Command, peer: Peer) -> None:
        """DELETE_ACL_CONFIG 51."""
        self._change(command, peer, lambda fields: DropAccount(_needed(fields, "accessKey")))

    def set_white_addresses(self, command: Command, peer: Peer) -> None:
        """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG 53."""
        self._change(command, peer, _white_addresses)

    def version(self, command: Command, _peer: Peer) -> Command:
        """GET_BROKER_CLUSTER_ACL_INFO 52."""
        version = {"counter": self._rules().version, "timestamp": 0}
        return command.answer(
            fields={
                "version": dumps(version),
                "allAclFileVersion": dumps({ACCESS_FILE: version}),
                "brokerName": self._identity.name,
                "brokerAddr": self._identity.address,
                "clusterName": self._identity.cluster,
            }
        )

    def accounts(self, command: Command, _peer: Peer) -> Command:
        """GET_BROKER_CLUSTER_ACL_CONFIG 54, each secret as ``******``."""
        plain = to_plain_acl(self._rules(), secrets=False)
        return command.answer(
            body=body_json.write(
                {
                    "globalWhiteAddrs": plain["globalWhiteRemoteAddresses"],
                    "plainAccessConfigs": plain["accounts"],
                }
            )
        )

    def _change(
        self, command: Command, peer: Peer, read: Callable[[Mapping[str, str]], AccountChange]
    ) -> None:
        access, failed = self._held(), FAILED[RequestCode(command.code)]
        author = ChangeAuthor(peer.host, peer.port, self._author(command, peer), peer.member)

        async def make() -> None:
            error: RmqError | None = None
            try:
                await access.change(read(command.fields or {}), author)
            except NotAuthorized as refusal:
                error = refusal
            except RmqError as fault:
                error = Refused(fault.message, failed)

            def ended() -> Command:
                if error is not None:
                    raise error
                return command.answer()

            self._answer(command, peer, ended)

        task = asyncio.get_running_loop().create_task(make(), name="change of accounts")
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    def _author(self, command: Command, peer: Peer) -> str:
        """Accounts are changed by an account or a member, never by an address alone."""
        if peer.trusted:
            return peer.account
        return signer(self._rules(), command, peer.host).access_key

    def _put(self, fields: Mapping[str, str]) -> PutAccount:
        key, secret, admin = (
            _needed(fields, "accessKey"),
            fields.get("secretKey") or None,
            fields.get("admin"),
        )
        if admin is not None and admin not in _SWITCH:
            raise ConfigError(f"admin is {admin!r:.80}; write true or false")
        if secret is None and self._rules().find(key) is None:
            raise ConfigError(f"there is no account {key!r:.80}; give secretKey, too, to make it")
        return PutAccount(
            key,
            secret,
            None if admin is None else _SWITCH[admin],
            fields.get("whiteRemoteAddress"),
            _right(fields, "defaultTopicPerm"),
            _right(fields, "defaultGroupPerm"),
            _rights(fields, "topicPerms"),
            _rights(fields, "groupPerms"),
            # the store would make a secret for a new account, which would reach nobody
            new=None if secret else False,
        )

    def _held(self) -> AccessCopy:
        if self._access is None:
            raise ConfigError(
                f"cluster {self._identity.cluster} has no accounts; start it with foreign='acl' "
                f"(rmq-ray up --foreign acl)",
                self._identity.cluster,
            )
        return self._access

    def _rules(self) -> AccessRules:
        return self._held().rules or AccessRules()


def _white_addresses(fields: Mapping[str, str]) -> SetWhiteAddresses:
    if fields.get("aclFileFullPath"):
        raise ConfigError("the accounts are in no file of a broker: leave its path out")
    text = _needed(fields, "globalWhiteAddrs", may_be_empty=True).strip()
    return SetWhiteAddresses((text,) if text else ())


def _needed(fields: Mapping[str, str], name: str, *, may_be_empty: bool = False) -> str:
    value = fields.get(name)
    if value is None or not (value or may_be_empty):
        raise ConfigError(f"the field {name!r} is missing")
    return value


def _right(fields: Mapping[str, str], name: str) -> Right | None:
    text = fields.get(name)
    return Right.parse(text) if text else None


def _rights(fields: Mapping[str, str], name: str) -> dict[str, Right] | None:
    text = fields.get(name)
    if not text:
        return None
    found = {}
    for entry in text.split(","):
        what, equals, right = entry.partition("=")
        if not equals or not what.strip():
            raise ConfigError(f"{name} has {entry!r:.80}; write name=PUB|SUB")
        found[what.strip()] = Right.parse(right)
    return found
