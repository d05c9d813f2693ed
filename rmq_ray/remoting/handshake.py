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

An account's HELLO has its access key as a fifth element; then ``secret`` is
``Account.handshake_key`` and ``0 + access key`` ends what both proofs are made over.

HMAC is HMAC-SHA256. The order of the nonces keeps one side's proof from serving as the other's.
Decides whether a peer knows the secret of this cluster and role, or of one of its accounts; what
an unproven peer may do is decided by the listener. Called by listener and connections. Invariants:
a nonce serves one handshake; proofs are compared in constant time; an empty secret proves nothing;
an access key that nobody has is answered as a wrong proof is, so that none can be found by asking.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from enum import Enum

import msgpack
from msgspec.structs import replace

from rmq_ray.errors import HandshakeFailed
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, Body, Command
from rmq_ray.value import Value

PROTOCOL_VERSION = 1
NONCE_BYTES = 32
FRAME_BYTES_MAX = 4_096
"""Longest frame of a handshake: what a stranger may make a closed port read."""
_TEXT_BYTES_MAX = 1_020
"""Of a name in HELLO: 255 characters."""
_ANY_KEY = secrets.token_bytes(32)
"""Stands for the key of an account that is not there: nobody knows it."""

AccountKey = Callable[[str], bytes | None]
"""What the account of an access key proves itself with (``Account.handshake_key``); None = there
is no such account. It must not take longer for one that is there: derive the keys before.
"""
TOO_LATE = (
    "no answer to the handshake in time; the server is overloaded or stopped, or no server of "
    "this kind"
)
CLOSED_EARLY = (
    "the server closed the connection during the handshake; it may be full, or no server of this "
    "kind, or it speaks TLS only (tls=rmq.Tls(...))"
)
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""An alert and a handshake, of any version."""
_NO_HELLO = "HELLO is no list of version, cluster, role and nonce"
"""Also what servers that knew no accounts said to an access key."""
_NO_SECRET = (
    "no secret is configured here: connect without a handshake, or start the cluster with a secret"
)


class Credentials(Value, frozen=True):
    """What both ends must agree on: the cluster's name, the server's role (``broker``,
    ``name_server``) and the secret: the cluster's, or the handshake key of the account
    ``access_key``.
    """

    __secret__ = ("secret",)

    cluster: str
    role: str
    secret: bytes
    access_key: str = ""


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
        ours = self._credentials
        said = [PROTOCOL_VERSION, ours.cluster, ours.role, self._nonce]
        if ours.access_key:
            said.append(ours.access_key)
        return Command(RequestCode.HELLO, opaque=-1, body=msgpack.packb(said), serialize=BINARY)

    def prove(self, answer: Command) -> Command:
        """The second frame. Raises ``HandshakeFailed``."""
        if self._credentials.access_key and answer.remark == _NO_HELLO:
            raise HandshakeFailed(
                f"the server is of a version that knows no accounts, so not "
                f"{self._credentials.access_key!r:.80} either: update it, or connect without an "
                f"access key",
                answer.code,
            )
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
                f"the server did not prove that it knows {_named(self._credentials)}; nothing "
                f"was sent to it"
            )


def no_frame(first: bytes, bytes_max: int, met: bool) -> str:
    """What somebody did who sent these four bytes where a frame's length stands; for errors.
    ``met``: frames of ours came from there before, so that it is no other program.

    >>> no_frame(b"HTTP", 4096, True)
    'sent a frame of 1213486160 bytes; 4096 are the most'
    """
    if met:
        size = int.from_bytes(first, "big", signed=True)
        return f"sent a frame of {size} bytes; {bytes_max} are the most"
    return f"sent no frame; {stranger(first)}"


def stranger(first: bytes) -> str:
    """Who seems to listen where an answer begins with these bytes, which are no frame of ours; for
    errors.

    >>> stranger(b"HTTP")
    "an HTTP server listens there: check host and port of rmq_ray's server"
    """
    if first[:2] in _TLS_RECORDS:
        return "it speaks TLS: connect with tls=rmq.Tls(...), or set RMQ_TLS_CA"
    text = first.decode("ascii", "replace")
    said = f"another program, which says {text!r}, " if text.isprintable() else "another program "
    who = "an HTTP server " if first == b"HTTP" else said
    return f"{who}listens there: check host and port of rmq_ray's server"


class ServerState(Enum):
    """Where the server's side stands."""

    EXPECTS_HELLO = 1
    EXPECTS_PROOF = 2
    TRUSTED = 3
    FAILED = 4


class ServerHandshake:
    """The server's side: give each frame to ``receive``, write the answer; after ``FAILED`` close
    the connection. ``account_key``: None = this cluster has no accounts. ``proven``: what the peer
    proves itself with; whose it is counts once the state is ``TRUSTED``.
    """

    def __init__(
        self, credentials: Credentials, nonce: bytes, account_key: AccountKey | None = None
    ) -> None:
        self.proven = credentials
        self._account_key = account_key
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
        wanted = self.proven
        try:
            version, cluster, role, nonce, *account = msgpack.unpackb(
                command.body_bytes(),
                max_array_len=5,
                max_str_len=_TEXT_BYTES_MAX,
                max_map_len=0,
                max_ext_len=0,
            )
        except (ValueError, TypeError, msgpack.exceptions.UnpackException):
            return self._refuse(command, _NO_HELLO)
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
        fault = self._claims(account[0]) if account else _NO_SECRET if not wanted.secret else ""
        if fault:
            return self._refuse(command, fault)
        self._client_nonce = nonce
        self.state = ServerState.EXPECTS_PROOF
        return command.answer(body=msgpack.packb([self._nonce]))

    def _claims(self, access_key: object) -> str:
        """From here on the peer must prove that it is this account; what is wrong about that."""
        if not isinstance(access_key, str) or not access_key:
            return "the access key in HELLO is no text"
        if self._account_key is None:
            return (
                f"this cluster has no accounts, so it cannot know {access_key!r:.80}: connect "
                f"without an access key, or start the cluster with foreign='acl'"
            )
        key = self._account_key(access_key) or _ANY_KEY
        self.proven = replace(self.proven, secret=key, access_key=access_key)
        return ""

    def _prove(self, command: Command) -> Command:
        proven = self.proven
        if not hmac.compare_digest(
            command.body_bytes(), _proof(proven, self._client_nonce, self._nonce)
        ):
            fault = (
                f"wrong access key or secret key: there is no account {proven.access_key!r:.80} "
                f"with this secret; correct them, or let an administrator make the account "
                f"(rmq-ray acl user)"
                if proven.access_key
                else "wrong secret: each start of a cluster makes a new one; a client from before "
                "this start takes it by itself where it found the cluster by name, one that was "
                "given secret= needs that of this start"
            )
            return self._refuse(command, fault)
        self.state = ServerState.TRUSTED
        return command.answer(body=_proof(proven, self._nonce, self._client_nonce))

    def _refuse(self, command: Command, fault: str) -> Command:
        self.state = ServerState.FAILED
        self.fault = fault
        return command.answer(ResponseCode.NO_PERMISSION, remark=fault)


def _named(credentials: Credentials) -> str:
    if credentials.access_key:
        return f"the secret key of account {credentials.access_key!r:.80}"
    return "the cluster's secret"


def _proof(credentials: Credentials, first: bytes, second: bytes) -> bytes:
    content = b"".join(
        (first, second, credentials.cluster.encode(), b"\0", credentials.role.encode())
    )
    if credentials.access_key:
        content += b"\0" + credentials.access_key.encode()
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
