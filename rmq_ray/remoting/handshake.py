"""The first two frames of a connection of ours: who may talk to this cluster. No I/O, no clock;
nonces are arguments.

    client                                                server (never speaks first)
    HELLO  [version, cluster, role, client nonce 32]  ->
                                                      <-  0, [server nonce 32]
    PROVE  HMAC(secret, client nonce + server nonce
                + cluster + 0 + role)                 ->
                                                      <-  0, HMAC(secret, server nonce
                                                             + client nonce + cluster + 0 + role)
    an answer may also be 16: then the connection ends

HMAC is HMAC-SHA256. The order of the nonces keeps one side's proof from serving as the other's.
Decides whether a peer knows the secret of this cluster and role; what an unproven peer may do is
decided by the listener. Called by listener and connections. Invariants: a nonce serves one
handshake; proofs are compared in constant time; an empty secret proves nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import Enum

import msgpack

from rmq_ray.errors import HandshakeFailed
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, Body, Command

PROTOCOL_VERSION = 1
NONCE_BYTES = 32
FRAME_BYTES_MAX = 4_096
"""Longest frame of a handshake: what a stranger may make a closed port read."""
_NAME_MAX = 255


@dataclass(frozen=True, slots=True)
class Credentials:
    """What both ends must agree on: the cluster's name, the server's role (``broker``,
    ``name_server``) and the secret.
    """

    cluster: str
    role: str
    secret: bytes = field(repr=False)


class ClientHandshake:
    """The client's side: ``hello`` -> ``prove`` -> ``finish``, each given the answer to the frame
    before.
    """

    def __init__(self, credentials: Credentials, nonce: bytes) -> None:
        self._credentials = credentials
        self._nonce = nonce
        self._server_nonce = b""

    def hello(self) -> Command:
        """The first frame of the connection."""
        body = msgpack.packb(
            [PROTOCOL_VERSION, self._credentials.cluster, self._credentials.role, self._nonce]
        )
        return Command(RequestCode.HELLO, opaque=-1, body=body, serialize=BINARY)

    def prove(self, answer: Command) -> Command:
        """The second frame. Raises ``HandshakeFailed``."""
        _check_accepted(answer)
        nonce = _single(answer.body)
        if nonce is None:
            raise HandshakeFailed(
                "the server's answer to HELLO holds no nonce of 32 bytes; is it another "
                "program's port?"
            )
        self._server_nonce = nonce
        return Command(
            RequestCode.PROVE,
            opaque=-2,
            body=_proof(self._credentials, self._nonce, nonce),
            serialize=BINARY,
        )

    def finish(self, answer: Command) -> None:
        """Check that the server knows the secret too. Raises ``HandshakeFailed``."""
        _check_accepted(answer)
        if not hmac.compare_digest(
            answer.body_bytes(), _proof(self._credentials, self._server_nonce, self._nonce)
        ):
            raise HandshakeFailed(
                "the server did not prove that it knows the cluster's secret; nothing was "
                "sent to it"
            )


class ServerState(Enum):
    """Where the server's side stands."""

    EXPECTS_HELLO = 1
    EXPECTS_PROOF = 2
    TRUSTED = 3
    FAILED = 4


class ServerHandshake:
    """The server's side: give each frame to ``receive``, write the answer; after ``FAILED`` close
    the connection.
    """

    def __init__(self, credentials: Credentials, nonce: bytes) -> None:
        self._credentials = credentials
        self._nonce = nonce
        self._client_nonce = b""
        self.state = ServerState.EXPECTS_HELLO
        self.fault = ""

    def receive(self, command: Command) -> Command:
        """The answer to HELLO or PROVE; ``state`` tells what it meant. Anything else fails the
        handshake.
        """
        if self.state is ServerState.EXPECTS_HELLO and command.code == RequestCode.HELLO:
            return self._hello(command)
        if self.state is ServerState.EXPECTS_PROOF and command.code == RequestCode.PROVE:
            return self._prove(command)
        return self._refuse(command, f"request {command.code} in the middle of a handshake")

    def _hello(self, command: Command) -> Command:
        wanted = self._credentials
        try:
            version, cluster, role, nonce = msgpack.unpackb(
                command.body_bytes(),
                max_array_len=4,
                max_str_len=_NAME_MAX,
                max_map_len=0,
                max_ext_len=0,
            )
        except (ValueError, TypeError, msgpack.exceptions.UnpackException):
            return self._refuse(command, "HELLO is no list of version, cluster, role and nonce")
        if version != PROTOCOL_VERSION:
            return self._refuse(
                command, f"handshake version {version!r}, but {PROTOCOL_VERSION} is spoken here"
            )
        if cluster != wanted.cluster or role != wanted.role:
            return self._refuse(
                command,
                f"this is another cluster or role than {cluster!r}, {role!r}: check the "
                f"address and the cluster's name",
            )
        if not isinstance(nonce, bytes) or len(nonce) != NONCE_BYTES:
            return self._refuse(command, f"the nonce has not {NONCE_BYTES} bytes")
        if not wanted.secret:
            return self._refuse(
                command,
                "no secret is configured here: connect without a handshake, or start the "
                "cluster with a secret",
            )
        self._client_nonce = nonce
        self.state = ServerState.EXPECTS_PROOF
        return command.answer(body=msgpack.packb([self._nonce]))

    def _prove(self, command: Command) -> Command:
        if not hmac.compare_digest(
            command.body_bytes(), _proof(self._credentials, self._client_nonce, self._nonce)
        ):
            return self._refuse(command, "wrong secret: ask the cluster for its secret again")
        self.state = ServerState.TRUSTED
        return command.answer(body=_proof(self._credentials, self._nonce, self._client_nonce))

    def _refuse(self, command: Command, fault: str) -> Command:
        self.state = ServerState.FAILED
        self.fault = fault
        return command.answer(ResponseCode.NO_PERMISSION, remark=fault)


def _proof(credentials: Credentials, first: bytes, second: bytes) -> bytes:
    content = b"".join(
        (first, second, credentials.cluster.encode(), b"\0", credentials.role.encode())
    )
    return hmac.new(credentials.secret, content, hashlib.sha256).digest()


def _check_accepted(answer: Command) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise HandshakeFailed(
            answer.remark or f"the server refused the handshake with code {answer.code}",
            answer.code,
        )


def _single(body: Body) -> bytes | None:
    try:
        values = msgpack.unpackb(
            b"".join(body) if isinstance(body, tuple) else body,
            max_array_len=1,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.exceptions.UnpackException):
        return None
    if (
        isinstance(values, list)
        and len(values) == 1
        and isinstance(values[0], bytes)
        and len(values[0]) == NONCE_BYTES
    ):
        return values[0]
    return None
