"""The name server behind its port, spoken to byte by byte as Apache RocketMQ's clients and brokers
do.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ForeignClients, NameServerConfig, RemotingLimits
from rmq_ray.errors import StoreInUse
from rmq_ray.model.ids import Address
from rmq_ray.model.topics import DataVersion, TopicConfig
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command, decode, encode_bytes
from rmq_ray.server.namesrv import name_server_runner
from rmq_ray.server.namesrv.name_server import NameServer
from rmq_ray.server.namesrv.name_server_runner import NameServerRunner

CAPTURED_JSON = bytes.fromhex(
    "000000820000007e7b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a224c616241227d2c22666c6167223a302c226c616e6775616765223a224a415641"
    "222c226f7061717565223a302c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3430377d"
)
CAPTURED_BINARY = bytes.fromhex(
    "000000290100002500690201970000000d0000000000000000000000100005746f706963000000054c61625079"
)


@asynccontextmanager
async def open_port() -> AsyncIterator[tuple[NameServer, Address]]:
    server = NameServer(NameServerConfig(), SYSTEM_CLOCK)
    listener = Listener(
        server,
        Credentials("default", "name_server", b""),
        ForeignClients.OPEN,
        RemotingLimits(),
        SYSTEM_CLOCK,
        "name server",
    )
    address = await listener.start("127.0.0.1", 0)
    try:
        yield server, address
    finally:
        await listener.close()


class Stranger:
    """A connection that writes frames as they come over the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: Address) -> AsyncIterator[Stranger]:
        made = cls(*await asyncio.open_connection(address.host, address.port))
        try:
            yield made
        finally:
            made.writer.close()
            await made.writer.wait_closed()

    async def raw(self, frame: bytes) -> bytes:
        self.writer.write(frame)
        async with asyncio.timeout(5):
            length = await self.reader.readexactly(4)
            return await self.reader.readexactly(struct.unpack(">i", length)[0])

    async def ask(self, command: Command) -> Command:
        return decode(memoryview(bytearray(await self.raw(encode_bytes(command)))))

    async def register(self, name: str, address: str, topics: tuple[str, ...]) -> Command:
        body = bodies.encode_registration(
            {topic: TopicConfig(topic, 4, 4) for topic in topics}, DataVersion(1, 1)
        )
        crc = str(bodies.body_crc(body))
        fields = {
            "brokerName": name,
            "brokerAddr": address,
            "clusterName": "C",
            "haServerAddr": "h:1",
            "brokerId": "0",
            "bodyCrc32": crc,
        }
        return await self.ask(Command(RequestCode.REGISTER_BROKER, 1, fields=fields, body=body))


async def expect_soon(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def run(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))


@pytest.mark.seed("S0-009", "S0-025")
def test_captured_route_requests_of_java_and_python_clients_are_answered_in_their_own_form() -> (
    None
):
    async def scenario() -> None:
        async with (
            open_port() as (_server, address),
            Stranger.connect(address) as broker,
            Stranger.connect(address) as client,
        ):
            await broker.register("broker-a", "10.0.0.1:10911", ("LabA", "LabPy"))
            answer = await client.raw(CAPTURED_JSON)
            header_length = struct.unpack(">i", answer[:4])[0]
            header = json.loads(answer[4 : 4 + header_length])
            assert (header["code"], header["opaque"], header["flag"]) == (0, 0, 1)
            route = json.loads(answer[4 + header_length :])
            assert route["brokerDatas"] == [
                {"brokerAddrs": {"0": "10.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "C"}
            ]
            assert route["queueDatas"] == [
                {
                    "brokerName": "broker-a",
                    "perm": 6,
                    "readQueueNums": 4,
                    "topicSysFlag": 0,
                    "writeQueueNums": 4,
                }
            ]
            answer = await client.raw(CAPTURED_BINARY)
            assert answer[0] == 1 and struct.unpack(">i", b"\0" + answer[1:4])[0] == 21
            assert json.loads(answer[25:]) == route

    run(scenario())


@pytest.mark.seed("S3-134")
def test_a_broker_that_dies_is_out_of_the_routes_at_once_and_back_with_its_next_registration() -> (
    None
):
    async def scenario() -> None:
        async with open_port() as (server, address):
            async with Stranger.connect(address) as broker:
                await broker.register("broker-a", "10.0.0.1:10911", ("orders",))
                assert server.status()["topics"] == 1
            await expect_soon(lambda: server.status()["brokers"] == {})
            async with Stranger.connect(address) as again:
                await again.register("broker-a", "10.0.0.1:10911", ("orders",))
                assert server.status()["brokers"] == {"broker-a": {0: "10.0.0.1:10911"}}

    run(scenario())


def test_an_unknown_code_of_a_stranger_is_not_answered_and_the_next_request_is() -> None:
    async def scenario() -> None:
        async with open_port() as (_server, address), Stranger.connect(address) as client:
            client.writer.write(encode_bytes(Command(9_999, 3)))
            answer = await client.ask(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 4))
            assert (answer.opaque, answer.body_bytes()) == (4, b'{"topicList":[]}')

    run(scenario())


def test_errors_become_answers_with_their_code_and_remedy() -> None:
    async def scenario() -> None:
        async with open_port() as (server, address), Stranger.connect(address) as client:
            answer = await client.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, 5))
            assert answer.code == 1 and "topic" in (answer.remark or "")
            fields = {
                "brokerName": "b",
                "brokerAddr": "h:1",
                "clusterName": "C",
                "haServerAddr": "h:2",
                "brokerId": "0",
            }
            for body in (b"[]", b"{", b'{"topicConfigSerializeWrapper":7}'):
                answer = await client.ask(
                    Command(RequestCode.REGISTER_BROKER, 6, fields=fields, body=body)
                )
                assert answer.code != 0 and answer.opaque == 6
            assert server.status()["brokers"] == {}

    run(scenario())


def test_a_directory_has_one_name_server_at_a_time_and_the_second_one_leaves_its_port_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_server_runner, "LOCK_PAUSE_S", 0.01)

    def runner(cluster: str) -> NameServerRunner:
        return NameServerRunner(
            NameServerConfig(cluster_name=cluster, directory=str(tmp_path)), b"s" * 32, SYSTEM_CLOCK
        )

    async def scenario() -> None:
        first, second, later = runner("one"), runner("two"), runner("one")
        running = asyncio.create_task(first.run())
        await expect_soon(lambda: first.address)
        await second.run()
        assert (
            isinstance(second.error, StoreInUse)
            and str(tmp_path) in str(second.error)
            and "stop its cluster first" in str(second.error)
        )
        assert (tmp_path / "port").read_text() == str(first.address).rpartition(":")[2]
        await first.stop()
        await running
        running = asyncio.create_task(later.run())
        await expect_soon(lambda: later.address)
        assert later.address == first.address
        await later.stop()
        await running

    run(scenario())


def test_a_restarted_name_server_waits_for_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_server_runner, "LOCK_PAUSE_S", 0.005)

    def runner(restarted: bool) -> NameServerRunner:
        return NameServerRunner(
            NameServerConfig(cluster_name="one", directory=str(tmp_path)),
            b"s" * 32,
            SYSTEM_CLOCK,
            restarted=restarted,
        )

    async def scenario() -> None:
        dying, restarted, unwanted = runner(False), runner(True), runner(True)
        tasks = [asyncio.create_task(dying.run())]
        await expect_soon(lambda: dying.address)
        tasks += [asyncio.create_task(restarted.run()), asyncio.create_task(unwanted.run())]
        await asyncio.sleep(2 * name_server_runner.LOCK_TRIES * name_server_runner.LOCK_PAUSE_S)
        assert restarted.error is None and restarted.address is None
        await unwanted.stop()
        await expect_soon(lambda: unwanted.error)
        await dying.stop()
        await expect_soon(lambda: restarted.address)
        assert restarted.address == dying.address
        await restarted.stop()
        await asyncio.gather(*tasks)

    run(scenario())


def test_a_restarted_name_server_waits_for_its_own_port_and_takes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_server_runner, "TICK_S", 0.02)

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            port = stranger.getsockname()[1]
            (tmp_path / "port").write_text(str(port))
            again = NameServerRunner(
                NameServerConfig(directory=str(tmp_path)), b"s" * 32, SYSTEM_CLOCK, restarted=True
            )
            running = asyncio.create_task(again.run())
            await asyncio.sleep(0.1)
            assert again.address is None and again.error is None
        await expect_soon(lambda: again.address)
        assert again.address == Address("127.0.0.1", port) and (
            tmp_path / "port"
        ).read_text() == str(port)
        await again.stop()
        await running

    run(scenario())
