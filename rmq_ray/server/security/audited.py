"""Who sees that an audited request was answered: its line in the audit log says how it ended, also
where the answer comes later.

Called by the dispatch of brokers and name servers, for rows of the request table that are audited.
Invariant: one line for each request; neither a body nor a value whose name speaks of a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmq_ray.errors import RmqError
from rmq_ray.ports import Peer
from rmq_ray.protocol.live_settings import parse_properties
from rmq_ray.remoting.request_table import Row
from rmq_ray.remoting.wire import bodies_groups, body_json
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_RESPONSE, Command
from rmq_ray.server.security.audit_log import AuditLog

KINDS = {
    "topic": "topic",
    "group": "group",
    "groupName": "group",
    "consumerGroup": "group",
    "srcGroup": "group",
    "destGroup": "group",
    "brokerName": "broker",
    "namespace": "namespace",
}
"""Ext fields that name what a request touches."""
Settings = Callable[[int, Mapping[str, str]], Mapping[str, str] | None]
SECRETS = ("secret", "signature", "password", "token")


class Witness:
    """The peer of one audited request: hears its answer. ``party``: who serves. ``settings(code,
    fields)``: what the request is about as it is now, asked before the request and after it.
    """

    def __init__(
        self,
        log: AuditLog,
        party: str,
        row: Row,
        command: Command,
        peer: Peer,
        settings: Settings = lambda _code, _fields: None,
    ) -> None:
        self._log = log
        self._party = party
        self._row = row
        self._peer = peer
        self._opaque = command.opaque
        self._fields = {**(command.fields or {}), **_settings(command)}
        self._told = False
        self._settings = settings
        self._old = settings(row.code, self._fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)

    def send(self, command: Command) -> None:
        """See ``ports.Peer``."""
        if command.flag & FLAG_RESPONSE and command.opaque == self._opaque:
            self.hears(command)
        self._peer.send(command)

    def hears(self, answer: Command) -> None:
        """The answer, whoever sends it."""
        done = answer.code == ResponseCode.SUCCESS
        self.ends(
            "" if done else answer.remark or f"code {answer.code}",
            _moved(answer)
            if done and self._row.code is RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            else None,
        )

    def ends(self, outcome: str, new: Mapping[str, str] | None = None) -> None:
        """It worked (``""``), or why it did not. ``new``: None = as ``settings`` says now."""
        if self._told:
            return
        self._told = True
        now = new
        if new is None and not outcome:
            now = self._settings(self._row.code, self._fields)
        self._log.changed(
            self._party,
            self._peer,
            self._row,
            [(KINDS[name], value) for name, value in self._fields.items() if name in KINDS],
            old=self._old,
            new=_told(self._fields) if outcome or (self._old is None and now is None) else now,
            outcome=outcome,
        )


def _settings(command: Command) -> dict[str, str]:
    """What a body holds that is settings and no message."""
    if command.code == RequestCode.UPDATE_BROKER_CONFIG:
        try:
            return parse_properties(command.body_bytes().decode())
        except (RmqError, UnicodeDecodeError):
            return {}
    if command.code != RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
        return {}
    try:
        return {name: str(value) for name, value in body_json.parse(command.body).items()}
    except (RmqError, AttributeError):  # the handler says what is wrong with it
        return {}


def _moved(answer: Command) -> dict[str, str] | None:
    """Where a group's members were told to go on: they commit it themselves, later."""
    found = bodies_groups.decode_offsets(answer.body_bytes())
    return {f"{queue.topic}:{queue.queue_id}": str(offset) for queue, offset in found.items()}


def _told(fields: Mapping[str, str]) -> dict[str, str] | None:
    """What was asked for beside the names; None where that was all."""
    found = {
        name: value
        for name, value in fields.items()
        if name not in KINDS and not any(word in name.lower() for word in SECRETS)
    }
    return found or None
