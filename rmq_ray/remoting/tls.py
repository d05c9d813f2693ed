"""What TLS is spoken with: contexts made of settings and PEM files, and what a failure means.

    settings --files--> SSLContext          changed files --every 2 s (server)--> a new context
                                            broken new files: the old context stays, and is told

Decides: TLS 1.2 or newer, ciphers with forward secrecy and authentication, no renegotiation, no
tickets. Does no I/O but reading PEM files. Called by listeners and connections. Invariants: a
private key in an error, a log line or a ``repr`` never; OpenSSL never asks a terminal for a
password; a server whose new files are wrong serves with the old ones.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rmq_ray.clock import Clock
from rmq_ray.config import ClientAuth, Tls, TlsMode, TlsSettings
from rmq_ray.errors import ConfigError

log = logging.getLogger("rmq_ray.remoting")

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; TLS 1.3 has none that is weak."""
LOOK_MS = 2_000
WARN_DAYS = 14
CACHED_MAX = 64
PEM_MARK = "-----BEGIN"
_DAY_MS = 86_400_000

_REASONS = {
    "WRONG_VERSION_NUMBER": "the other end does not speak TLS",
    "HTTP_REQUEST": "the other end speaks HTTP",
    "UNSUPPORTED_PROTOCOL": "the other end speaks only versions older than TLS 1.2",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other end refuses TLS 1.2 and newer",
    "NO_SHARED_CIPHER": "both ends have no cipher in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "both ends have no cipher in common, or a client certificate "
    "is required: give certificate and key",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server requires a client certificate: give "
    "certificate and key (rmq.Tls, or RMQ_TLS_CERTIFICATE and RMQ_TLS_KEY)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate, which client_auth "
    "requires",
    "TLSV1_ALERT_UNKNOWN_CA": "the other end does not know the CA that signed our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other end refused our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired, says the other end",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other end does not accept our certificate",
    "UNEXPECTED_EOF_WHILE_READING": "the other end closed the connection",
}
_VERIFY = {
    9: "its certificate is not valid yet: compare the clocks of both hosts",
    10: "its certificate has expired: make a new one in the same file, which is taken up at once",
    18: "its certificate is self-signed and not our CA: give its file as ca",
    19: "our ca did not sign its certificate: give the file of the CA that did as ca",
    20: "our ca did not sign its certificate: give the file of the CA that did as ca",
    21: "our ca did not sign its certificate: give the file of the CA that did as ca",
}
_HOST_MISMATCH = (62, 64)
_ENCRYPTED_KEY = re.compile(r"-----BEGIN ENCRYPTED PRIVATE KEY-----([^-]*)-----END")
_LEGACY_CIPHERS = tuple(
    bytes.fromhex(f"06{len(prefix) // 2 + 1:02x}{prefix}{last:02x}")
    for prefix, numbers in (
        ("2a864886f70d010c01", (1, 2, 5, 6)),  # PBE-SHA1 with RC4-128, RC4-40, RC2-128, RC2-40
        ("2a864886f70d0105", (1, 3, 4, 6, 10, 11)),  # PBE of PKCS 5 1.5: DES and RC2
    )
    for last in numbers
)
"""Object identifiers, as they stand in the first bytes of a key."""
_cache: dict[Tls, tuple[object, ssl.SSLContext]] = {}
_cache_lock = threading.Lock()
SCRATCH_BYTES = 256 << 10


def explain(error: ssl.SSLError) -> str:
    """What was wrong and what to do, in a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _HOST_MISMATCH:
            return (
                f"{error.verify_message.rstrip('.')}: give the server a certificate that "
                f"names this host, or check_host=False"
            )
        known = _VERIFY.get(error.verify_code)
        return known or f"its certificate was refused: {error.verify_message}"
    reason = getattr(error, "reason", None)  # one of ours has none: it was explained before
    return _REASONS.get(reason, f"TLS: {reason}") if reason else str(error)


def client_context(tls: Tls) -> ssl.SSLContext:
    """For a new connection; the files are read when they have changed. ``ConfigError`` where they
    cannot be used, unless the ones before could.
    """
    stamp = _stamp(tls.ca, tls.certificate, tls.key)
    with _cache_lock:
        known = _cache.get(tls)
    if known is not None and known[0] == stamp:
        return known[1]
    try:
        context = _make_client(tls)
    except (ConfigError, OSError) as error:
        if known is None:
            raise
        log.warning("TLS goes on with the files as they were: %s", error)
        return known[1]
    with _cache_lock:
        if len(_cache) >= CACHED_MAX:
            _cache.pop(next(iter(_cache)))
        _cache[tls] = (stamp, context)
    return context


class ServerTls:
    """Of one listener, in its loop. ``look`` every second; ``context`` for each new connection.

    Raises ``ConfigError`` at construction.
    """

    def __init__(self, settings: TlsSettings, clock: Clock, name: str) -> None:
        self.enforcing = settings.mode is TlsMode.ENFORCING
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """What all connections of the loop receive into: nothing stays there between two
        callbacks.
        """
        self.error = ""
        self._settings = settings
        self._clock = clock
        self._name = name
        self._stamp = self._files()
        self.context, self.expires_ms = _make_server(settings, clock.now_ms())
        self._looked_ms = clock.monotonic_ms()
        self._warn()

    def look(self, now_ms: float) -> None:
        """Take up files that have changed; ``now_ms`` is monotonic."""
        if now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        stamp = self._files()
        if stamp == self._stamp:
            return
        try:
            self.context, self.expires_ms = _make_server(self._settings, self._clock.now_ms())
        except (ConfigError, OSError) as error:
            if str(error) != self.error:
                log.error(
                    "%s: TLS goes on with the certificate as it was, the new files are wrong: %s",
                    self._name,
                    error,
                )
            self.error = str(error)
        else:
            self.error, self._stamp = "", stamp
            log.info("%s: new connections get the new certificate", self._name)
            self._warn()

    def status(self) -> dict[str, object]:
        """For people: mode, when the certificate ends, and what is wrong with newer files."""
        found: dict[str, object] = {
            "mode": self._settings.mode.value,
            "client_auth": self._settings.client_auth.value,
            "expires_ms": self.expires_ms,
        }
        return found | ({"error": self.error} if self.error else {})

    def _files(self) -> object:
        return _stamp(self._settings.certificate, self._settings.key, self._settings.ca)

    def _warn(self) -> None:
        days = (self.expires_ms - self._clock.now_ms()) // _DAY_MS
        if days < WARN_DAYS:
            log.warning("%s: its TLS certificate ends in %d days", self._name, days)


def _make_server(settings: TlsSettings, now_ms: int) -> tuple[ssl.SSLContext, int]:
    """The context, and when its certificate ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    context.num_tickets = 0  # nobody asks for a session again; two less writes a connection
    _load_pair(context, settings.certificate, settings.key, settings.key_password)
    expires_ms = _expiry_ms(settings.certificate)
    if expires_ms <= now_ms:
        raise ConfigError(
            f"the certificate {settings.certificate} has expired: make a new one in the same file",
            settings.certificate,
        )
    _load_ca(context, settings.ca)
    context.verify_mode = {
        ClientAuth.NONE: ssl.CERT_NONE,
        ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
        ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
    }[settings.client_auth]
    return context, expires_ms


def _make_client(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if tls.ca:
        _load_ca(context, tls.ca)
    else:
        context.load_default_certs()
    if tls.certificate:
        _load_pair(context, tls.certificate, tls.key, tls.key_password)
    context.check_hostname = tls.check_host
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= (
        ssl.OP_NO_RENEGOTIATION
        | ssl.OP_NO_COMPRESSION
        | ssl.OP_NO_TICKET
        | ssl.OP_CIPHER_SERVER_PREFERENCE
    )


def of_member(settings: TlsSettings) -> Tls | None:
    """How a server itself connects to others of its cluster."""
    if settings.mode is TlsMode.DISABLED:
        return None
    return Tls(
        settings.ca,
        settings.certificate,
        settings.key,
        settings.key_password,
        settings.check_host,
    )


def told_to_clients(settings: TlsSettings) -> Tls | None:
    """What clients get that find a cluster through Ray: texts, since they may run anywhere.
    ``ConfigError`` where a file cannot be read.
    """
    if settings.mode is TlsMode.DISABLED:
        return None
    certificate, key = (
        read_pem(pem) if pem else "" for pem in (settings.client_certificate, settings.client_key)
    )
    return Tls(read_pem(settings.ca), certificate, key, check_host=settings.check_host)


def read_pem(pem: str) -> str:
    """The text that a setting stands for. ``ConfigError`` where its file cannot be read."""
    if PEM_MARK in pem:
        return pem
    try:
        with open(pem, encoding="ascii") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the TLS file {pem} cannot be read: {getattr(error, 'strerror', None) or error}; it "
            f"must be a PEM file that this process may read, on this host",
            pem,
        ) from None
    if PEM_MARK not in text:
        raise ConfigError(
            f"{pem} is no PEM file: it has no {PEM_MARK}...; convert it with openssl", pem
        )
    return text


def _load_ca(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(cadata=read_pem(ca))
    except ssl.SSLError as error:
        raise ConfigError(
            f"the CA {_called(ca)} holds no certificate that can be used: {error.reason or error}",
            _called(ca),
        ) from None


def _load_pair(context: ssl.SSLContext, certificate: str, key: str, password: str) -> None:
    """OpenSSL reads files only: text goes through memory that looks like one."""

    def ask() -> str:
        if not password:
            raise ConfigError(
                f"the key {_called(key or certificate)} has a password: give it as key_password, "
                f"or a key without one in a file that only this user may read",
                _called(key or certificate),
            )
        return password

    with ExitStack() as files:
        chain, private = (
            files.enter_context(_in_memory(read_pem(pem))) if pem else None
            for pem in (certificate, key)
        )
        assert chain is not None  # the settings say so
        try:
            context.load_cert_chain(chain, private, ask)
        except ssl.SSLError as error:
            text = read_pem(key or certificate)
            what = _pair_fault(error, text, _called(certificate), _called(key or certificate))
            raise ConfigError(what, _called(key or certificate)) from None


def _pair_fault(error: ssl.SSLError, text: str, certificate: str, key: str) -> str:
    """OpenSSL says only "PEM lib" about a key that it cannot decrypt: ``text`` is asked why."""
    reason = error.reason or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return f"the key {key} does not belong to the certificate {certificate}"
    if _is_refused(text):
        return (
            f"OpenSSL 3 refuses the cipher that the key {key} is encrypted with, like "
            f"PBE-SHA1-RC4-128 of RocketMQ's guide; write it anew: openssl pkcs8 -topk8 "
            f"-provider legacy -provider default -in {key} -out new.key"
        )
    if "ENCRYPTED" in text:
        return f"key_password does not open the key {key}"
    return (
        f"the certificate {certificate} and the key {key} cannot be used: {reason}; both must be "
        f"PEM, the server's certificate first, with keys of 2048 bits or more"
    )


def _is_refused(text: str) -> bool:
    """Whether a PKCS 8 key is encrypted by a cipher of OpenSSL's legacy provider."""
    found = _ENCRYPTED_KEY.search(text)
    try:
        der = base64.b64decode(found[1]) if found is not None else b""
    except ValueError:
        return False
    return any(mark in der[:64] for mark in _LEGACY_CIPHERS)


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _expiry_ms(certificate: str) -> int:
    from cryptography import x509  # 60 ms, and only where TLS is spoken

    first = x509.load_pem_x509_certificates(read_pem(certificate).encode())[0]
    return int(first.not_valid_after_utc.timestamp() * 1000)


def _called(pem: str) -> str:
    """A path; of a text, which may be a key, nothing is shown."""
    return "given as text" if PEM_MARK in pem else pem


def _stamp(*pems: str) -> tuple[object, ...]:
    """Another value when a file was written or replaced."""
    return tuple(_file_stamp(pem) for pem in pems if pem and PEM_MARK not in pem)


def _file_stamp(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino
