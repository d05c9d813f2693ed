"""What a signature of RocketMQ's ACL holds, over real connections: fields that stand twice in a
header, bodies that were changed, frames that are cut, and what can be sent again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_ray.model.ids import Address
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.protocol.access.signature import ACCESS_KEY, SIGNATURE
from rmq_ray.remoting.request_table import Party, rows_of
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.frame import BINARY, JSON, Command, encode_bytes
from rmq_ray.server.security.access_guard import APACHES_WORDS
from tests.support.asked_requests import command_of, signed
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.wire import RawClient

SECRET = "the secret of all"
RULES = AccessRules(
    {
        "web-shop": Account("web-shop", SECRET, topics={"orders": Right.PUB | Right.SUB}),
        "operator": Account("operator", SECRET, admin=True),
    },
    version=1,
)
BODY = b"body"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, rules=RULES) as running:
        yield running


@pytest.fixture
def stranger(cluster: LiveCluster) -> Iterator[RawClient]:
    with RawClient(address_of(cluster)) as client:
        for topic in ("orders", "payroll"):
            assert client.ask(sending("operator", topic)).code == 0
        yield client


def address_of(cluster: LiveCluster) -> Address:
    address = cluster.brokers[0].address
    assert address is not None
    return address


def sending(name: str, topic: str = "orders", secret: str = SECRET) -> Command:
    """A signed send."""
    command = command_of(rows_of(Party.BROKER)[Code.SEND_MESSAGE])
    fields = {**(command.fields or {}), "topic": topic}
    return signed(replace(command, fields=fields, body=BODY), name, secret)


def stored(cluster: LiveCluster) -> tuple[int, int]:
    """Messages of ``orders`` and ``payroll``."""
    bounds = (cluster.store().bounds(topic, 0)[1] for topic in ("orders", "payroll"))
    return next(bounds), next(bounds)


def frame_of(command: Command, form: int, first: tuple[str, str]) -> bytes:
    """The command's frame with one field more, in front of the others, which may have it too."""
    entries = [first, *(command.fields or {}).items()]
    if form == JSON:
        fields = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in entries)
        header = b'{"code":%d,"opaque":7,"flag":0,"extFields":{%b}}' % (
            command.code,
            fields.encode(),
        )
    else:
        area = b"".join(
            struct.pack(">h", len(name))
            + name.encode()
            + struct.pack(">i", len(value))
            + value.encode()
            for name, value in entries
        )
        header = struct.pack(">hbhiiii", command.code, 0, 407, 7, 0, 0, len(area)) + area
    body = command.body_bytes()
    size = 4 + len(header) + len(body)
    return struct.pack(">ii", size, form << 24 | len(header)) + header + body


def with_last(command: Command, name: str, value: str) -> tuple[Command, tuple[str, str]]:
    """The command with this value in a field, and the field as it was signed."""
    was = (command.fields or {})[name]
    return replace(command, fields={**(command.fields or {}), name: value}), (name, was)


@pytest.mark.parametrize("form", [JSON, BINARY], ids=["JSON", "binary"])
def test_of_a_field_that_stands_twice_what_was_signed_counts_or_nothing(
    cluster: LiveCluster, stranger: RawClient, form: int
) -> None:
    orders, payroll = stored(cluster)

    def asked(command: Command, first: tuple[str, str]) -> bool:
        """Whether it was done; else it was refused for its signature."""
        stranger.sock.sendall(frame_of(command, form, first))
        answer = stranger.receive()
        assert answer.opaque == 7
        if answer.code != 0:
            assert str(answer.remark).startswith(APACHES_WORDS), answer.remark
        return answer.code == 0

    send = sending("operator")
    assert not asked(*with_last(send, "topic", "payroll")), "signed first, another last"
    assert not asked(*with_last(send, SIGNATURE, "x" * 28))
    assert not asked(*with_last(sending("web-shop", "payroll"), ACCESS_KEY, "operator"))
    assert stored(cluster) == (orders, payroll)
    assert asked(send, ("topic", "payroll")), "another first, signed last: the last counts"
    assert asked(send, (SIGNATURE, "x" * 28))
    assert stored(cluster) == (orders + 2, payroll), "what was signed was done"
    assert not asked(sending("web-shop", "payroll"), (ACCESS_KEY, "operator"))
    assert stored(cluster) == (orders + 2, payroll), "rights are those of who signed"


@pytest.mark.parametrize("form", [JSON, BINARY], ids=["JSON", "binary"])
def test_a_body_that_was_changed_or_cut_is_refused(
    cluster: LiveCluster, stranger: RawClient, form: int
) -> None:
    before, send = stored(cluster), replace(sending("web-shop"), serialize=form)
    for body in (b"", BODY[:-1], b"Body", BODY + b"!"):
        answer = stranger.ask(replace(send, body=body))
        assert answer.code == 1 and "Check signature failed" in str(answer.remark)
    assert stored(cluster) == before
    assert stranger.ask(send).code == 0, "the connection goes on"


@pytest.mark.parametrize("form", [JSON, BINARY], ids=["JSON", "binary"])
def test_a_signed_frame_that_is_cut_stores_nothing(
    cluster: LiveCluster, stranger: RawClient, form: int
) -> None:
    before, frame = stored(cluster), encode_bytes(replace(sending("web-shop"), serialize=form))
    for end in range(1, len(frame), 7):
        with RawClient(address_of(cluster)) as other:
            other.sock.sendall(frame[:end])
    for shorter in range(1, len(BODY) + 1):  # its length says that it is whole
        size = struct.pack(">i", len(frame) - 4 - shorter)
        stranger.sock.sendall(size + frame[4:-shorter])
        assert "Check signature failed" in str(stranger.receive().remark)
    assert stored(cluster) == before


def test_who_reads_the_traffic_can_send_a_signed_request_again_and_as_another_code(
    cluster: LiveCluster, stranger: RawClient
) -> None:
    """The limit of RocketMQ's signatures that docs/security.md tells: TLS is what helps."""
    frame, (before, _) = encode_bytes(sending("web-shop")), stored(cluster)
    for _ in range(2):
        with RawClient(address_of(cluster)) as thief:
            thief.sock.sendall(frame)
            assert thief.receive().code == 0
    assert stored(cluster)[0] == before + 2
    asked = signed(command_of(rows_of(Party.BROKER)[Code.GET_MAX_OFFSET]), "web-shop", SECRET)
    least, most = (
        stranger.ask(replace(asked, code=code)) for code in (Code.GET_MIN_OFFSET, asked.code)
    )
    assert least.code == most.code == 0
    assert (least.fields or {})["offset"] == "0" != (most.fields or {})["offset"]
