"""BUNDLE 20060: several single requests of one client in one frame, each handled as if it had come
alone (wire-protocol: ours).

    body     msgpack [[code, fields, body], ...]
    answer   msgpack [[code, fields, remark], ...], in the same order

Decides: which requests may travel so, and that the answer leaves when the last of them is answered.
Does not decide anything about them. For our own clients only. Invariant: one answer for a bundle,
after all its parts; a part that fails changes nothing for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgpack

from rmq_ray.errors import MalformedFrame
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command

PARTS_MAX = 1_024
BUNDLED = frozenset(
    (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION)
)


class _Part:
    """The peer of one part: its answer goes to the bundle. See ``ports.Peer``."""

    def __init__(self, bundle: _Bundle, peer: Peer) -> None:
        self._bundle = bundle
        self._peer = peer
        self.host, self.port = peer.host, peer.port
        self.trusted, self.member, self.account = peer.trusted, peer.member, peer.account
        self.attributes = peer.attributes

    @property
    def closed(self) -> bool:
        """Whether the connection is gone."""
        return self._peer.closed

    def send(self, command: Command) -> None:
        """The part's answer."""
        self._bundle.answered(command)

    def close(self, reason: str) -> None:
        """The whole connection."""
        self._peer.close(reason)


class _Bundle:
    """Collects answers by their place."""

    def __init__(self, command: Command, peer: Peer, count: int) -> None:
        self._command = command
        self._peer = peer
        self._answers: list[Command | None] = [None] * count
        self._open = count

    def answered(self, answer: Command) -> None:
        """One part is done; after the last one the answer leaves."""
        if self._answers[answer.opaque] is None:
            self._answers[answer.opaque] = answer
            self._open -= 1
            if not self._open:
                parts = [
                    [part.code, part.fields, part.remark]
                    for part in self._answers
                    if part is not None
                ]
                self._peer.send(self._command.answer(body=msgpack.packb(parts)))


class BundleHandler:
    """``handle``: of the broker, for each part."""

    def __init__(self, handle: Callable[[Command, Peer], Command | None]) -> None:
        self._handle = handle

    def bundle(self, command: Command, peer: Peer) -> Command | None:
        """20060."""
        parts = _parts(command)
        bundle = _Bundle(command, peer, len(parts))
        for number, (code, fields, body) in enumerate(parts):
            answer = self._handle(
                Command(code, number, 0, fields, body), cast(Peer, _Part(bundle, peer))
            )
            if answer is not None:
                bundle.answered(answer)
        return None


def _parts(command: Command) -> list[tuple[int, dict[str, str], bytes]]:
    try:
        raw: Any = msgpack.unpackb(command.body_bytes())
        parts = [
            (int(code), {str(name): str(value) for name, value in fields.items()}, bytes(body))
            for code, fields, body in raw
        ]
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise MalformedFrame(f"the body is no bundle of requests: {error}") from error
    if not 0 < len(parts) <= PARTS_MAX or any(code not in BUNDLED for code, _, _ in parts):
        raise MalformedFrame(
            f"a bundle has 1 to {PARTS_MAX} requests of the codes {sorted(map(int, BUNDLED))}"
        )
    return parts
