"""Requests as Apache RocketMQ's clients write them, over plain sockets: either serialisation of
headers, sends of version 1, version 2 and as a batch, and codes that nobody knows.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.bodies_admin import BatchElement, join_batch
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, JSON, Command, decode, encode_bytes
from rmq_ray.remoting.wire.headers import SendHeader
from tests.support.brokers.open_cluster import opened

TOPIC = "TBW102"
FORMS = pytest.mark.parametrize("form", [JSON, BINARY], ids=["json", "binary"])


class Raw:
    """A connection without our handshake: one request, one answer."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 10)
        self._number = 40

    def close(self) -> None:
        self._socket.close()

    def ask(self, code: int, form: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """The answer, which has the form and the opaque of its request."""
        self._number += 1
        asked = Command(code, self._number, fields=fields, body=body, serialize=form)
        self._socket.sendall(encode_bytes(asked))
        answer = self.read()
        assert (answer.opaque, answer.serialize) == (self._number, form) and answer.is_response
        return answer

    def read(self) -> Command:
        (size,) = struct.unpack(">i", self._exactly(4))
        return decode(memoryview(bytearray(self._exactly(size))))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            assert part, "the server closed the connection"
            found += part
        return found


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of a name server and a broker that are open to everybody."""
    directory: Path = tmp_path_factory.mktemp("foreign")
    with opened(directory, 120) as (address, _):
        names = Raw(address)
        answer = names.ask(Code.GET_ROUTEINFO_BY_TOPIC, JSON, {"topic": TOPIC})
        (broker,) = bodies.decode_route(answer.body).brokers
        names.close()
        yield {"name server": address, "broker": str(broker.addresses[0])}


@pytest.fixture
def broker(servers: dict[str, str]) -> Iterator[Raw]:
    connection = Raw(servers["broker"])
    yield connection
    connection.close()


@FORMS
def test_sends_of_both_versions_and_batches_are_stored_alike(broker: Raw, form: int) -> None:
    topic = f"orders-{form}"
    header = SendHeader("web", topic, 1, 0, 1_700_000_000_000, 5, properties="TAGS\x01paid\x02")
    answers = [
        broker.ask(Code.SEND_MESSAGE, form, header.to_fields(), b"first"),
        broker.ask(Code.SEND_MESSAGE_V2, form, header.to_v2(), b"second"),
        broker.ask(
            Code.SEND_BATCH_MESSAGE,
            form,
            {**header.to_v2(), "m": "true"},
            join_batch(BatchElement(body, "TAGS\x01paid\x02") for body in (b"third", b"fourth")),
        ),
    ]
    assert [answer.code for answer in answers] == [0, 0, 0], [one.remark for one in answers]
    offsets = [(answer.fields or {})["queueOffset"] for answer in answers]
    assert offsets == ["0", "1", "2"]
    assert len((answers[2].fields or {})["msgId"].split(",")) == 2
    pull = {
        "consumerGroup": "billing",
        "topic": topic,
        "queueId": "1",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        "subscription": "paid",
        "expressionType": "TAG",
    }
    page = broker.ask(Code.PULL_MESSAGE, form, pull)
    assert page.code == 0 and (page.fields or {})["nextBeginOffset"] == "4"
    body = page.body_bytes()
    assert [body.count(text) for text in (b"first", b"second", b"third", b"fourth")] == [1] * 4


@FORMS
@pytest.mark.parametrize("code", [9_999, 25_555, 32_767])
def test_a_broker_says_of_an_unknown_code_that_it_is_not_supported(
    broker: Raw, form: int, code: int
) -> None:
    answer = broker.ask(code, form, {"topic": "orders"})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f" request type {code} not supported"


@FORMS
def test_a_name_server_says_nothing_to_an_unknown_code_and_goes_on(
    servers: dict[str, str], form: int
) -> None:
    names = Raw(servers["name server"])
    unknown = Command(9_999, 7, fields={}, serialize=form)
    names._socket.sendall(encode_bytes(unknown))
    answer = names.ask(Code.GET_ROUTEINFO_BY_TOPIC, form, {"topic": TOPIC})
    names.close()
    assert answer.code == 0, "the next answer is that of the next request"
