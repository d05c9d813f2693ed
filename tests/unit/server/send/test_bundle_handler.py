"""A bundle's parts are handled as if each had come alone, by the same party."""

from __future__ import annotations

import msgpack

from rmq_ray.ports import Peer
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.send.bundle_handler import BundleHandler
from tests.support.faults.fake_peer import FakePeer


def test_a_part_is_asked_by_whoever_sent_the_bundle() -> None:
    asked: list[tuple[str, bool, bool]] = []

    def handle(command: Command, peer: Peer) -> Command:
        asked.append((peer.account, peer.member, peer.trusted))
        return command.answer()

    part = [int(RequestCode.SEND_MESSAGE_V2), {}, b""]
    bundle = Command(RequestCode.BUNDLE, 1, body=msgpack.packb([part]))
    for peer in (FakePeer(account="web-shop"), FakePeer(), FakePeer(trusted=False)):
        BundleHandler(handle).bundle(bundle, peer)
        assert len(peer.sent) == 1
    assert asked == [("web-shop", False, True), ("", True, True), ("", False, False)]
