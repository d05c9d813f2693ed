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
from rmq_ray.protocol.access.accounts import KEY_CHARS_MAX, Account
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
        b"secret=", b""
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


WEB = Account("web-shop", "a secret of shops")
ACCOUNTS = {WEB.access_key: WEB.handshake_key("orders")}
AS_WEB = Credentials("orders", "broker", ACCOUNTS["web-shop"], "web-shop")


def refusal(theirs: Credentials, server: ServerHandshake) -> str:
    with pytest.raises(HandshakeFailed) as caught:
        shake(ClientHandshake(theirs, CLIENT_NONCE), server)
    assert server.state is ServerState.FAILED
    return caught.value.message


@pytest.mark.parametrize("members_secret", [b"secret", b""])
def test_an_account_proves_its_own_key_and_is_told_apart_from_members(
    members_secret: bytes,
) -> None:
    ours = replace(OURS, secret=members_secret)
    server = ServerHandshake(ours, SERVER_NONCE, ACCOUNTS.get)
    shake(ClientHandshake(AS_WEB, CLIENT_NONCE), server)
    assert server.state is ServerState.TRUSTED and server.proven.access_key == "web-shop"


def test_a_member_needs_no_account_where_there_are_some() -> None:
    server = ServerHandshake(OURS, SERVER_NONCE, ACCOUNTS.get)
    shake(ClientHandshake(OURS, CLIENT_NONCE), server)
    assert server.state is ServerState.TRUSTED and server.proven.access_key == ""


def test_a_key_that_nobody_has_is_refused_as_a_wrong_secret_is() -> None:
    def told(theirs: Credentials) -> str:
        server = ServerHandshake(OURS, SERVER_NONCE, ACCOUNTS.get)
        hello = over_the_wire(ClientHandshake(theirs, CLIENT_NONCE).hello())
        assert server.receive(hello).code == 0  # the first answer tells nothing
        server = ServerHandshake(OURS, SERVER_NONCE, ACCOUNTS.get)
        return refusal(theirs, server).replace(theirs.access_key, "KEY")

    wrong = told(replace(AS_WEB, secret=b"guessed"))
    assert "wrong access key or secret key" in wrong and "rmq-ray acl" in wrong
    assert told(replace(AS_WEB, access_key="web-shed")) == wrong
    assert told(replace(AS_WEB, access_key="web-shed", secret=b"")) == wrong


def test_neither_secret_serves_for_the_other() -> None:
    for theirs in (
        replace(OURS, access_key="web-shop"),
        replace(AS_WEB, access_key=""),
        replace(AS_WEB, secret=WEB.secret_key.encode()),
        replace(AS_WEB, secret=WEB.handshake_key("payments")),
    ):
        server = ServerHandshake(OURS, SERVER_NONCE, ACCOUNTS.get)
        assert "wrong" in refusal(theirs, server)


def test_one_account_cannot_pass_as_another_with_the_same_secret() -> None:
    twins = dict.fromkeys(("web-shop", "web-shed"), AS_WEB.secret)
    server = ServerHandshake(OURS, SERVER_NONCE, twins.get)
    client = ClientHandshake(AS_WEB, CLIENT_NONCE)
    hello = msgpack.packb([1, "orders", "broker", CLIENT_NONCE, "web-shed"])
    challenge = server.receive(Command(RequestCode.HELLO, body=hello))
    assert server.receive(client.prove(challenge)).code == 16


def test_a_cluster_without_accounts_says_so() -> None:
    server = ServerHandshake(OURS, SERVER_NONCE)
    assert "has no accounts" in refusal(AS_WEB, server)


def test_a_server_that_knew_no_accounts_is_named_as_the_reason() -> None:
    client = ClientHandshake(AS_WEB, CLIENT_NONCE)
    answer = client.hello().answer(
        16, remark="HELLO is no list of version, cluster, role and nonce"
    )
    with pytest.raises(HandshakeFailed, match="knows no accounts, so not 'web-shop'"):
        client.prove(answer)


@pytest.mark.parametrize("key", ["", 7, None, b"web-shop", ["web-shop"], "k" * 1_021])
def test_an_access_key_of_another_shape_is_refused(key: object) -> None:
    server = ServerHandshake(OURS, SERVER_NONCE, ACCOUNTS.get)
    body = msgpack.packb([1, "orders", "broker", CLIENT_NONCE, key])
    assert server.receive(Command(RequestCode.HELLO, body=body)).code == 16
    assert server.state is ServerState.FAILED


HELLO = [1, "orders", "broker", CLIENT_NONCE]
NOT_HELLO = [
    [],
    HELLO[:3],
    [*HELLO, 5],
    [*HELLO, "web-shop", 5],
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
    long = Credentials("c" * 255, "r" * 255, b"s", "\N{FERRIS WHEEL}" * KEY_CHARS_MAX)
    hello = ClientHandshake(long, CLIENT_NONCE).hello()
    assert len(encode_bytes(hello)) < FRAME_BYTES_MAX
    assert ServerHandshake(long, SERVER_NONCE, lambda _key: b"s").receive(hello).code == 0
