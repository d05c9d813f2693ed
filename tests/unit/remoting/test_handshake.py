"""The handshake without a wire: both ends prove that they know the secret, and every deviation is
refused.
"""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.errors import HandshakeFailed
from rmq_ray.remoting.handshake import (
    FRAME_BYTES_MAX,
    ClientHandshake,
    Credentials,
    ServerHandshake,
    ServerState,
)
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command, decode, encode_bytes

OURS = Credentials("orders", "broker", b"secret")
CLIENT_NONCE, SERVER_NONCE = b"c" * 32, b"s" * 32


def over_the_wire(command: Command) -> Command:
    return decode(memoryview(encode_bytes(command))[4:])


def shake(client: ClientHandshake, server: ServerHandshake) -> None:
    challenge = over_the_wire(server.receive(over_the_wire(client.hello())))
    client.finish(over_the_wire(server.receive(over_the_wire(client.prove(challenge)))))


def test_two_ends_with_the_same_secret_trust_each_other() -> None:
    server = ServerHandshake(OURS, SERVER_NONCE)
    shake(ClientHandshake(OURS, CLIENT_NONCE), server)
    assert server.state is ServerState.TRUSTED


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (replace(OURS, secret=b"Secret"), "wrong secret"),
        (replace(OURS, cluster="order"), "another cluster or role"),
        (replace(OURS, role="name_server"), "another cluster or role"),
        (replace(OURS, secret=b""), "wrong secret"),
    ],
)
def test_a_client_with_other_credentials_is_refused_with_the_reason(
    theirs: Credentials, reason: str
) -> None:
    server = ServerHandshake(OURS, SERVER_NONCE)
    with pytest.raises(HandshakeFailed, match=reason) as caught:
        shake(ClientHandshake(theirs, CLIENT_NONCE), server)
    assert server.state is ServerState.FAILED and reason in server.fault
    assert b"secret" not in repr(caught.value).encode().replace(b"wrong secret", b"").replace(
        b"its secret", b""
    )


def test_a_server_without_a_secret_trusts_nobody() -> None:
    bare = replace(OURS, secret=b"")
    server = ServerHandshake(bare, SERVER_NONCE)
    with pytest.raises(HandshakeFailed, match="no secret is configured"):
        shake(ClientHandshake(bare, CLIENT_NONCE), server)


def test_a_server_that_does_not_know_the_secret_is_found_out() -> None:
    client = ClientHandshake(OURS, CLIENT_NONCE)
    prove = client.prove(client.hello().answer(body=msgpack.packb([SERVER_NONCE])))
    for proof in (b"", prove.body_bytes(), bytes(32)):  # its own proof sent back is none
        with pytest.raises(HandshakeFailed, match="did not prove"):
            client.finish(prove.answer(body=proof))


def test_a_recorded_proof_is_worth_nothing_to_another_connection() -> None:
    client = ClientHandshake(OURS, CLIENT_NONCE)
    first = ServerHandshake(OURS, SERVER_NONCE)
    prove = client.prove(first.receive(client.hello()))
    second = ServerHandshake(OURS, b"t" * 32)
    second.receive(client.hello())
    assert second.receive(prove).code == 16 and second.state is ServerState.FAILED


@pytest.mark.parametrize("code", [RequestCode.PROVE, RequestCode.SEND_MESSAGE, 0])
def test_anything_but_hello_first_fails(code: int) -> None:
    server = ServerHandshake(OURS, SERVER_NONCE)
    assert server.receive(Command(code)).code == 16
    assert server.state is ServerState.FAILED


def test_nothing_but_prove_may_follow_hello() -> None:
    client, server = ClientHandshake(OURS, CLIENT_NONCE), ServerHandshake(OURS, SERVER_NONCE)
    server.receive(client.hello())
    assert server.receive(client.hello()).code == 16
    assert server.receive(Command(RequestCode.PROVE)).code == 16  # failed stays failed
    assert server.state is ServerState.FAILED


HELLO = [1, "orders", "broker", CLIENT_NONCE]
NOT_HELLO = [
    [],
    HELLO[:3],
    [*HELLO, 5],
    {"a": 1},
    7,
    [2, *HELLO[1:]],
    [1, ["orders"], "broker", CLIENT_NONCE],
    [1, "orders", "broker", b"short"],
    [1, "orders", "broker", "c" * 32],
    [1, "orders", "broker", None],
]


@pytest.mark.parametrize("body", [b"", b"\xc1", *[msgpack.packb(value) for value in NOT_HELLO]])
def test_a_hello_of_another_shape_is_refused(body: bytes) -> None:
    server = ServerHandshake(OURS, SERVER_NONCE)
    assert server.receive(Command(RequestCode.HELLO, body=body)).code == 16
    assert server.state is ServerState.FAILED


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_no_body_breaks_either_end(body: bytes) -> None:
    server = ServerHandshake(OURS, SERVER_NONCE)
    server.receive(Command(RequestCode.HELLO, body=body))
    assert server.state is ServerState.FAILED
    client = ClientHandshake(OURS, CLIENT_NONCE)
    with pytest.raises(HandshakeFailed):
        client.finish(client.prove(client.hello().answer(body=body)).answer(body=body))


def test_secrets_are_not_printed() -> None:
    assert "secret'" not in repr(OURS)


def test_handshake_frames_fit_the_limit_for_strangers() -> None:
    long = Credentials("c" * 255, "r" * 255, b"s")
    assert len(encode_bytes(ClientHandshake(long, CLIENT_NONCE).hello())) < FRAME_BYTES_MAX
