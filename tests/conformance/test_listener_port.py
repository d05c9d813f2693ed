"""A listener's port seen from outside: who gets in, what ends a connection, and that nothing else
is touched.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ForeignClients, RemotingLimits
from rmq_ray.errors import ConfigError
from rmq_ray.protocol.access.accounts import Account
from rmq_ray.remoting.answer_writer import AnswerWriter
from rmq_ray.remoting.handshake import ClientHandshake, Credentials
from rmq_ray.remoting.listener import Listener
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import BINARY, FLAG_ONEWAY, JSON, Command, encode_bytes
from tests.support.wire import (
    BIG,
    CREDENTIALS,
    ECHO,
    FAIL,
    HOLD,
    LATE_AND_NOW,
    REFUSE,
    RELEASE,
    Echo,
    RawClient,
    Served,
    eventually,
)

AS_WEB = Credentials(
    "test", "broker", Account("web-shop", "a secret of shops").handshake_key("test"), "web-shop"
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(name="served")
def _served() -> Iterator[Served]:
    with Served(Echo()) as served:
        yield served


@pytest.fixture(name="open_port")
def _open_port() -> Iterator[Served]:
    with Served(Echo(), ForeignClients.OPEN) as served:
        yield served


def test_after_the_handshake_requests_are_served_in_both_forms(served: Served) -> None:
    with RawClient(served.address, CREDENTIALS) as client:
        for form in (JSON, BINARY):
            answer = client.ask(Command(ECHO, 5, fields={"a": "b"}, body=b"hello", serialize=form))
            assert (
                answer.opaque,
                answer.flag,
                answer.serialize,
                answer.fields,
                answer.body_bytes(),
            ) == (5, 1, form, {"a": "b"}, b"hello")
    assert served.handler.trusted == [True, True]
    assert eventually(lambda: len(served.handler.closings) == 1)


def test_the_server_never_speaks_first(served: Served) -> None:
    with RawClient(served.address) as client:
        client.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.sock.recv(1)


@pytest.mark.parametrize("code", [ECHO, RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.PROVE])
def test_a_closed_port_drops_whoever_begins_with_anything_but_hello(
    served: Served, code: int
) -> None:
    with RawClient(served.address) as client:
        client.send(Command(code, 1))
        assert client.ended()
    assert served.handler.seen == 0 and served.handler.closings == []


def test_requests_that_follow_a_failed_handshake_at_once_are_not_served(served: Served) -> None:
    wrong = ClientHandshake(Credentials("test", "broker", b"guess"), b"n" * 32)
    with RawClient(served.address) as client:
        challenge = client.ask(wrong.hello())
        client.sock.sendall(encode_bytes(wrong.prove(challenge)) + encode_bytes(Command(ECHO, 1)))
        assert client.receive().code == 16
        assert client.ended()
    assert served.handler.seen == 0


def test_a_stranger_cannot_send_long_frames_to_a_closed_port(served: Served) -> None:
    with RawClient(served.address) as client:
        client.sock.sendall(struct.pack(">i", 100_000))
        assert client.ended()


def test_an_open_port_serves_strangers_and_marks_them(open_port: Served) -> None:
    with (
        RawClient(open_port.address) as stranger,
        RawClient(open_port.address, CREDENTIALS) as ours,
    ):
        assert stranger.echo() and ours.echo()
        assert open_port.handler.trusted == [False, True]
        assert stranger.ask(Command(ECHO, 1, body=b"z" * 300_000)).body_bytes() == b"z" * 300_000


def test_a_wrong_secret_is_refused_on_an_open_port_too(open_port: Served) -> None:
    wrong = ClientHandshake(Credentials("test", "broker", b"guess"), b"n" * 32)
    with RawClient(open_port.address) as client:
        assert client.ask(wrong.prove(client.ask(wrong.hello()))).code == 16
        assert client.ended()


def test_an_account_is_known_by_its_proof_and_is_no_member() -> None:
    with (
        Served(Echo(), account_key={"web-shop": AS_WEB.secret}.get) as port,
        RawClient(port.address, AS_WEB) as account,
        RawClient(port.address, CREDENTIALS) as member,
    ):
        assert account.echo() and member.echo()
        assert port.handler.whose == [("web-shop", False), ("", True)]
        assert port.handler.trusted == [True, True]


def test_a_connection_that_proved_an_old_secret_ends_and_the_others_go_on() -> None:
    keys = {"web-shop": AS_WEB.secret}
    with (
        Served(Echo(), account_key=keys.get) as port,
        RawClient(port.address, AS_WEB) as account,
        RawClient(port.address, CREDENTIALS) as member,
    ):
        assert account.echo()
        del keys["web-shop"]
        port.loop.call_soon_threadsafe(port.listener.scan, SYSTEM_CLOCK.monotonic_ms())
        assert account.echo(), "of an account that is gone the handler decides"
        keys["web-shop"] = b"another secret"
        assert account.ended() and member.echo()
        with RawClient(port.address) as again:
            old = ClientHandshake(AS_WEB, b"n" * 32)
            assert again.ask(old.prove(again.ask(old.hello()))).code == 16


def test_strangers_are_no_members_and_no_account(open_port: Served) -> None:
    with RawClient(open_port.address) as stranger:
        assert stranger.echo()
    assert open_port.handler.whose == [("", False)]


def test_an_accounts_handshake_that_is_cut_at_any_byte_lets_nobody_in() -> None:
    with Served(Echo(), account_key={"web-shop": AS_WEB.secret}.get) as port:
        client = ClientHandshake(AS_WEB, b"n" * 32)
        hello = encode_bytes(client.hello())
        for cut in range(1, len(hello)):
            with RawClient(port.address) as half:
                half.sock.sendall(hello[:cut])
        with RawClient(port.address) as half:
            proof_bytes = len(encode_bytes(client.prove(half.ask(client.hello()))))
        for cut in range(0, proof_bytes, 3):
            with RawClient(port.address) as half:
                proof = encode_bytes(client.prove(half.ask(client.hello())))
                half.sock.sendall(proof[:cut])
        with RawClient(port.address, AS_WEB) as whole:
            assert whole.echo()
        assert port.handler.whose == [("web-shop", False)]
        assert eventually(lambda: not port.listener.connections)


def test_settings_that_cannot_hold_are_refused_at_construction() -> None:
    with pytest.raises(ConfigError, match="acl"):
        Listener(Echo(), CREDENTIALS, ForeignClients.ACL, RemotingLimits(), SYSTEM_CLOCK, "broker")
    with pytest.raises(ConfigError, match="secret"):
        Listener(
            Echo(),
            Credentials("c", "broker", b""),
            ForeignClients.CLOSED,
            RemotingLimits(),
            SYSTEM_CLOCK,
            "broker",
        )


BAD_STARTS = {
    "tls": bytes.fromhex("1603010200010001fc0303"),
    "length 0": struct.pack(">i", 0),
    "length 3": struct.pack(">i", 3) + b"abc",
    "negative": struct.pack(">i", -5),
    "one too long": struct.pack(">i", 16_777_213),
    "header beyond frame": struct.pack(">ii", 8, 100) + b"{}{}",
    "unknown type": struct.pack(">ii", 8, 7 << 24) + b"{}{}",
    "broken json": struct.pack(">ii", 8, 4) + b"{1:}",
    "http": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("start", BAD_STARTS.values(), ids=BAD_STARTS.keys())
@pytest.mark.parametrize("trusted", [True, False])
def test_a_malformed_frame_ends_its_connection_with_a_logged_reason_and_no_other(
    served: Served, open_port: Served, start: bytes, trusted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = served if trusted else open_port
    with (
        caplog.at_level(logging.WARNING, "rmq_ray.remoting"),
        RawClient(server.address, CREDENTIALS) as healthy,
    ):
        assert healthy.echo()
        with RawClient(server.address, CREDENTIALS if trusted else None) as bad:
            bad.sock.sendall(start)
            assert bad.ended()
            assert f"127.0.0.1:{bad.sock.getsockname()[1]} closed: " in caplog.text
        assert healthy.echo()


def test_frames_before_a_malformed_one_are_answered(served: Served) -> None:
    with RawClient(served.address, CREDENTIALS) as client:
        client.sock.sendall(encode_bytes(Command(ECHO, 1, body=b"first")) + struct.pack(">i", -1))
        assert client.receive().body_bytes() == b"first"
        assert client.ended()


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    data=st.binary(min_size=1, max_size=300),
    after_a_good_frame=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_random_bytes_hurt_nobody_else(
    served: Served, data: bytes, after_a_good_frame: bool, seed: int
) -> None:
    chance = random.Random(seed)
    with (
        RawClient(served.address, CREDENTIALS) as healthy,
        RawClient(served.address, CREDENTIALS) as bad,
    ):
        if after_a_good_frame:  # a well-formed frame whose inside is overwritten
            frame = bytearray(
                encode_bytes(
                    Command(
                        ECHO,
                        9,
                        fields={"a": "b"},
                        body=b"x" * 40,
                        serialize=chance.choice((JSON, BINARY)),
                    )
                )
            )
            for byte in data[:6]:
                frame[chance.randrange(4, len(frame))] = byte
            data = bytes(frame)
        bad.sock.sendall(data)
        assert healthy.echo()
        bad.sock.shutdown(socket.SHUT_WR)
        bad.sock.settimeout(5)
        while bad.sock.recv(4096):
            pass
        assert healthy.echo()


def test_refusals_and_faults_of_the_handler_become_answers(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(served.address, CREDENTIALS) as client:
        refused, failed = (
            client.ask(Command(REFUSE, 1)),
            client.ask(Command(FAIL, 2, serialize=BINARY)),
        )
        assert (refused.code, refused.remark) == (2, "busy with tests")
        assert (failed.code, failed.remark, failed.serialize) == (
            1,
            "ValueError: a fault of the handler",
            BINARY,
        )
        assert "a fault of the handler" in caplog.text
        assert client.echo()


def test_oneway_requests_get_no_answer_even_when_they_fail(served: Served) -> None:
    with RawClient(served.address, CREDENTIALS) as client:
        for code in (ECHO, FAIL, REFUSE):
            client.send(Command(code, 1, FLAG_ONEWAY, body=b"o"))
        assert client.echo()
    assert served.handler.oneways == [b"o"] * 3


def test_held_requests_are_answered_later_in_any_order(served: Served) -> None:
    with RawClient(served.address, CREDENTIALS) as client:
        for number in range(3):
            client.send(Command(HOLD, number, body=b"%d" % number, serialize=BINARY))
        client.send(Command(RELEASE, 10, serialize=BINARY))
        assert [client.receive().opaque for _ in range(4)] == [2, 1, 0, 10]
        assert client.ask(Command(LATE_AND_NOW, 11, body=b"now")).body_bytes() == b"now"


def test_answers_to_earlier_requests_leave_in_two_writes_a_turn_the_first_one_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    plain = AnswerWriter.flush

    def flush(writer: AnswerWriter) -> int:
        writes.append(len(writer._parts))
        return plain(writer)

    with RawClient(served.address, CREDENTIALS) as client:
        for number in range(4):
            client.send(Command(HOLD, number, body=b"%d" % number, serialize=BINARY))
        assert client.echo()
        monkeypatch.setattr(AnswerWriter, "flush", flush)

        def answer() -> None:
            for held, peer in served.handler.held:
                peer.send(held.answer(body=held.body))
                sent.append(len(writes))

        sent: list[int] = []
        served.loop.call_soon_threadsafe(answer)
        assert [client.receive().opaque for _ in range(4)] == [0, 1, 2, 3]
        assert sent == [1, 1, 1, 1] and writes == [2, 6]
        served.loop.call_soon_threadsafe(answer)
        assert [client.receive().opaque for _ in range(4)] == [0, 1, 2, 3], "in the next turn, too"
        assert writes == [2, 6, 2, 6]


def test_a_thousand_pipelined_requests_are_answered_in_order_and_in_few_writes(
    served: Served,
) -> None:
    with RawClient(served.address, CREDENTIALS) as client:
        client.sock.sendall(
            b"".join(
                encode_bytes(Command(ECHO, number, body=b"x" * 20, serialize=BINARY))
                for number in range(1_000)
            )
        )
        assert [client.receive().opaque for _ in range(1_000)] == list(range(1_000))


def test_the_greatest_frame_passes_in_both_directions(served: Served) -> None:
    body = b"m" * (16_777_212 - 4 - 21)
    with RawClient(served.address, CREDENTIALS) as client:
        client.sock.settimeout(20)
        answer = client.ask(Command(ECHO, 1, body=body, serialize=BINARY))
        assert len(answer.body) == len(body) and bytes(answer.body[-5:]) == b"mmmmm"
        too_long = client.ask(Command(BIG, 2, body=b"16777216", serialize=BINARY))
        assert too_long.code == 1 and "16777" in (too_long.remark or "")
        assert client.echo()


def test_a_client_that_does_not_read_is_read_no_further_and_then_goes_on() -> None:
    with (
        Served(Echo()) as served,
        RawClient(served.address, CREDENTIALS) as lazy,
        RawClient(served.address, CREDENTIALS) as healthy,
    ):
        request = encode_bytes(Command(ECHO, 1, body=b"r" * 100_000, serialize=BINARY))
        lazy.sock.settimeout(0.3)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 3_000:
                lazy.sock.sendall(request)
                sent += 1
        seen = served.handler.seen
        assert seen < 300  # socket buffers and 1 MiB, not everything
        assert healthy.echo()
        lazy.sock.settimeout(10)
        for _ in range(seen):
            assert len(lazy.receive().body) == 100_000


def test_a_client_that_never_reads_its_answers_is_closed() -> None:
    with (
        Served(Echo(), limits=RemotingLimits(unsent_bytes_max=4 << 20)) as served,
        RawClient(served.address, CREDENTIALS) as lazy,
    ):
        for number in range(30):
            lazy.send(Command(HOLD, number, serialize=BINARY))
        assert eventually(lambda: len(served.handler.held) == 30)

        def push() -> None:
            for held, peer in served.handler.held:
                peer.send(held.answer(body=b"p" * (1 << 20)))

        served.call(push)
        assert eventually(lambda: len(served.handler.closings) == 1)
        assert served.listener.connections == 0


def test_unanswered_request_bytes_stop_the_reading_until_answers_are_given() -> None:
    limits = RemotingLimits(unsent_bytes_max=1 << 20)
    with (
        Served(Echo(), limits=limits) as served,
        RawClient(served.address, CREDENTIALS) as client,
        RawClient(served.address, CREDENTIALS) as other,
    ):
        client.sock.settimeout(0.3)
        frames = (Command(HOLD, n, body=b"h" * 20_000, serialize=BINARY) for n in range(3_000))
        rest = memoryview(b"".join(map(encode_bytes, frames)))

        def stopped() -> bool:
            nonlocal rest
            with contextlib.suppress(TimeoutError):
                while rest:
                    rest = rest[client.sock.send(rest) :]
            return len(served.handler.held) >= 50

        assert eventually(stopped) and rest
        assert len(served.handler.held) < 200
        assert other.echo()
        other.ask(Command(RELEASE, 1, serialize=BINARY))
        assert eventually(lambda: len(served.handler.held) > 10)  # it reads on


def test_connections_above_the_limit_are_closed_at_once_and_room_is_used_again() -> None:
    with Served(Echo(), limits=RemotingLimits(connections_max=2)) as served:
        with (
            RawClient(served.address, CREDENTIALS) as first,
            RawClient(served.address, CREDENTIALS),
        ):
            with RawClient(served.address) as third:
                assert third.ended()
            assert first.echo()
        assert eventually(lambda: served.listener.connections == 0)
        with RawClient(served.address, CREDENTIALS) as again:
            assert again.echo()


def test_requests_above_the_limit_of_unanswered_ones_are_refused() -> None:
    with (
        Served(Echo(), limits=RemotingLimits(unanswered_requests_max=3)) as served,
        RawClient(served.address, CREDENTIALS) as client,
    ):
        for number in range(4):
            client.send(Command(HOLD, number, serialize=BINARY))
        refused = client.receive()
        assert (refused.opaque, refused.code) == (3, 2)


def test_requests_answered_inside_the_handler_do_not_count_as_unanswered() -> None:
    with (
        Served(Echo(), limits=RemotingLimits(unanswered_requests_max=3)) as served,
        RawClient(served.address, CREDENTIALS) as client,
    ):
        assert [
            client.ask(Command(LATE_AND_NOW, number, body=b"now")).code for number in range(20)
        ] == [0] * 20


@pytest.mark.parametrize(
    "said",
    [
        b"",
        struct.pack(">i", 50) + b"half",
        encode_bytes(ClientHandshake(CREDENTIALS, b"n" * 32).hello()),
    ],
)
def test_a_client_that_does_not_finish_the_handshake_in_time_is_closed(said: bytes) -> None:
    with (
        Served(Echo(), limits=RemotingLimits(handshake_timeout_ms=1_000)) as served,
        RawClient(served.address) as silent,
    ):
        silent.sock.sendall(said)
        if said.startswith(encode_bytes(ClientHandshake(CREDENTIALS, b"n" * 32).hello())):
            silent.receive()
        assert silent.ended()


def test_an_idle_connection_is_closed_and_a_used_one_is_not() -> None:
    limits = RemotingLimits(idle_timeout_ms=1_500)
    with (
        Served(Echo(), limits=limits) as served,
        RawClient(served.address, CREDENTIALS) as idle,
        RawClient(served.address, CREDENTIALS) as used,
    ):
        assert eventually(lambda: used.echo() and served.listener.connections == 1, 8.0)
        assert idle.ended() and used.echo()


def test_closing_the_listener_ends_its_connections_and_frees_the_port() -> None:
    with Served(Echo()) as served:
        client = RawClient(served.address, CREDENTIALS)
    assert client.ended()
    client.sock.close()
    with pytest.raises(ConnectionRefusedError):
        RawClient(served.address)
