"""What is said of PEM files that cannot be used, and that no key is ever shown."""

from __future__ import annotations

import base64
import os
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from rmq_ray.clock import SYSTEM_CLOCK, ManualClock
from rmq_ray.config import Tls, TlsMode, TlsSettings
from rmq_ray.errors import ConfigError
from rmq_ray.remoting import tls as module
from rmq_ray.remoting.tls import LOOK_MS, ServerTls, client_context, of_member
from tests.support.certificates import Certificates

PASSWORD = "a password of tests"


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def _pem(kind: str, der: bytes) -> str:
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n"


def _rc4_key() -> str:
    """A key under PBE-SHA1-RC4-128, of made-up bytes."""

    def tlv(tag: int, content: bytes) -> bytes:
        return bytes([tag, len(content)]) + content

    oid = tlv(6, bytes.fromhex("2a864886f70d010c0101"))
    parameters = tlv(0x30, tlv(4, b"saltsalt") + tlv(2, b"\x08\x00"))
    return _pem(
        "ENCRYPTED PRIVATE KEY",
        tlv(0x30, tlv(0x30, oid + parameters) + tlv(4, b"x" * 64)),
    )


def _encrypted(files: Certificates) -> str:
    key = load_pem_private_key(Path(files.server_key).read_bytes(), None)
    path = files.directory / "encrypted.key"
    path.write_bytes(
        key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD.encode())
        )
    )
    return str(path)


def _fault(settings: TlsSettings) -> str:
    with pytest.raises(ConfigError) as caught:
        ServerTls(settings, SYSTEM_CLOCK, "a broker")
    return str(caught.value)


def test_a_key_of_another_certificate(files: Certificates) -> None:
    fault = _fault(TlsSettings(TlsMode.ENFORCING, files.server, files.client_pair[1], "", files.ca))
    assert "does not belong to the certificate" in fault and files.server in fault


def test_a_key_whose_cipher_openssl_refuses_says_how_to_write_it_anew(files: Certificates) -> None:
    path = files.directory / "rc4.key"
    path.write_text(_rc4_key())
    fault = _fault(TlsSettings(TlsMode.ENFORCING, files.server, str(path), PASSWORD, files.ca))
    assert "PBE-SHA1-RC4-128" in fault and "openssl pkcs8" in fault and PASSWORD not in fault


def test_keys_with_passwords_open_with_them_and_never_ask_a_terminal(files: Certificates) -> None:
    key = _encrypted(files)
    right = TlsSettings(TlsMode.ENFORCING, files.server, key, PASSWORD, files.ca)
    assert ServerTls(right, SYSTEM_CLOCK, "a broker").context is not None
    assert "key_password" in _fault(TlsSettings(TlsMode.ENFORCING, files.server, key, "", files.ca))
    wrong = _fault(TlsSettings(TlsMode.ENFORCING, files.server, key, "wrong one", files.ca))
    assert "does not open" in wrong and "wrong one" not in wrong
    assert PASSWORD not in repr(right) and PASSWORD not in repr(of_member(right))


@pytest.mark.parametrize("content", ["", "no pem", "-----BEGIN CERTIFICATE-----\nx\n"])
@pytest.mark.parametrize("which", ["certificate", "key", "ca"])
def test_files_that_are_something_else(files: Certificates, which: str, content: str) -> None:
    path = files.directory / "bad.pem"
    path.write_text(content)
    settings = files.settings().but(**{which: str(path)})
    assert str(path) in _fault(settings)


def test_files_that_nobody_may_read_or_that_are_not_there(files: Certificates) -> None:
    gone = str(files.directory / "gone.pem")
    for which in ("certificate", "key", "ca"):
        fault = _fault(files.settings().but(**{which: gone}))
        assert "cannot be read" in fault and "No such file" in fault and gone in fault
    directory = files.settings().but(ca=str(files.directory))
    assert "directory" in _fault(directory).lower()


def test_text_serves_as_well_as_files_and_is_never_shown(files: Certificates) -> None:
    certificate, key = (Path(path).read_text() for path in files.client_pair)
    tls = Tls(Path(files.ca).read_text(), certificate, key)
    assert client_context(tls).verify_mode is ssl.CERT_REQUIRED
    assert key not in repr(tls)
    other = Path(files.server_key).read_text()
    with pytest.raises(ConfigError) as caught:
        client_context(Tls(tls.ca, certificate, other))
    assert "PRIVATE KEY" not in str(caught.value) + repr(caught.value.args)


def test_neither_end_renegotiates_compresses_or_hands_out_tickets(files: Certificates) -> None:
    wanted = ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    server = ServerTls(files.settings(), SYSTEM_CLOCK, "a broker").context
    for context in (server, client_context(files.client())):
        assert context.options & wanted == wanted
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert server.num_tickets == 0


def test_a_client_reads_changed_files_again_and_keeps_good_ones(
    files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    tls = files.client()
    first = client_context(tls)
    assert client_context(tls) is first
    good = Path(files.ca).read_bytes()
    Path(files.ca).write_text("broken")
    assert client_context(tls) is first and "no PEM file" in caplog.text
    Path(files.ca).write_bytes(good)
    os.utime(files.ca, (1, 1))
    assert client_context(tls) is not first


def test_a_file_that_could_not_be_read_once_is_read_again_though_it_did_not_change(
    files: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    server, tls = ServerTls(files.settings(), clock, "a broker"), files.client()
    before, client_before = server.context, client_context(tls)
    files.renew(days=60)
    os.utime(files.ca, (1, 1))

    def fails(*_arguments: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_make_server", fails)
        patch.setattr(module, "_make_client", fails)
        for turn in range(1, 4):
            server.look(turn * LOOK_MS)
        assert client_context(tls) is client_before
    assert server.context is before and "Too many" in server.error
    assert caplog.text.count("TLS goes on with the certificate as it was") == 1
    server.look(4 * LOOK_MS)
    assert server.context is not before and not server.error
    assert client_context(tls) is not client_before


def test_a_certificate_that_ends_soon_is_told(
    files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    files.renew(days=5)
    ServerTls(files.settings(), SYSTEM_CLOCK, "broker-a")
    assert "broker-a: its TLS certificate ends in" in caplog.text
