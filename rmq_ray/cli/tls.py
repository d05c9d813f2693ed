"""``tls init``: a CA and certificates for a cluster, as PEM files. ``tls check``: what a port
shows to who connects.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import DAY_MS, RemotingLimits, Tls, TlsMode, TlsSettings
from rmq_ray.errors import ConfigError, TlsFailed
from rmq_ray.files import FileSystem
from rmq_ray.model.ids import Address
from rmq_ray.remoting.connection import dial
from rmq_ray.remoting.tls_socket import TlsSocket

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

NAMES = ("ca", "server", "client")
EVERYWHERE = ("localhost", "127.0.0.1")
NEXT = """`rmq-ray up --tls {folder}` takes them; or in rmq.toml:
    [tls]
    certificate = "{folder}/server.pem"
    key = "{folder}/server.key"
    ca = "{folder}/ca.pem"
copy server.pem, server.key and ca.pem to the same place on every host of a server; clients that do
not find the cluster through Ray need ca.pem (RMQ_TLS_CA). Keep ca.key away from all of them."""


@click.group()
def tls() -> None:
    """Certificates of a cluster."""


@tls.command(short_help="Make a CA, and certificates of servers and clients that it signed.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Name or address of a server that clients connect to; again for each.  [localhost is "
    "always among them]",
)
@click.option("--days", default=365, show_default=True, type=click.IntRange(1, 3_650))
@pass_options
@told
def init(options: Options, directory: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make a CA, and certificates of servers and clients that it signed, in DIRECTORY. Nothing that
    is there is overwritten.
    """
    made = make_files(directory, hosts, days)
    if options.style == "json":
        output.record({"files": made, "hosts": [*EVERYWHERE, *hosts]}, options.style)
        return
    click.echo("\n".join(made))
    click.echo(NEXT.format(folder=directory.expanduser().absolute()))


def make_files(directory: Path, hosts: Sequence[str], days: int) -> list[str]:
    """The paths of what was made there; ``ConfigError`` where one of them is there already."""
    folder = directory.expanduser().absolute()
    made = [str(folder / f"{name}.{kind}") for name in NAMES for kind in ("pem", "key")]
    files = FileSystem()
    there = [path for path in made if files.exists(path)]
    if there:
        raise ConfigError(
            f"{there[0]} is there already: give another directory, or move the old files away",
            there[0],
        )
    files.make_dirs(str(folder))
    ca = _Issuer(days)
    pairs = {
        "ca": (ca.certificate, ca.key),
        "server": ca.issue("rmq_ray server", (*EVERYWHERE, *hosts)),
        "client": ca.issue("rmq_ray client", ()),
    }
    for name, (certificate, key) in pairs.items():
        for kind, content in (("key", _key_pem(key)), ("pem", _pem(certificate))):
            file = files.open_private(str(folder / f"{name}.{kind}"))
            try:
                file.pwrite(content, 0)
            finally:
                file.close()
    return made


def tls_of(directory: str) -> TlsSettings:
    """Of a cluster that uses what ``init`` made there; ``ConfigError`` where that is not all."""
    folder = Path(directory).expanduser().absolute()
    certificate, key, ca = (str(folder / name) for name in ("server.pem", "server.key", "ca.pem"))
    files = FileSystem()
    for path in (certificate, key, ca):
        if not files.exists(path):
            raise ConfigError(
                f"{path} is not there: make it with `rmq-ray tls init {folder}`", path
            )
    return TlsSettings(TlsMode.ENFORCING, certificate, key, ca=ca)


@tls.command(short_help="Connect to a port by TLS, and say what it shows.")
@click.argument("address")
@click.option("--ca", default="", envvar="RMQ_TLS_CA", help="PEM file of who signed it.")
@click.option(
    "--certificate", default="", envvar="RMQ_TLS_CERTIFICATE", help="The client's own, PEM."
)
@click.option("--key", default="", envvar="RMQ_TLS_KEY", help="Of the client's certificate.")
@pass_options
@told
def check(options: Options, address: str, ca: str, certificate: str, key: str) -> None:
    """Connect to HOST:PORT as a client would, and say what it shows: version, cipher, whose
    certificate it is and for how long. Fails with the reason where a client would. The options
    stand in the environment, too: RMQ_TLS_CA, RMQ_TLS_CERTIFICATE, RMQ_TLS_KEY.
    """
    try:
        where = Address.parse(address)
    except ValueError as error:
        raise ConfigError(f"{error}; give HOST:PORT", address) from None
    stream = dial(where, None, RemotingLimits(), SYSTEM_CLOCK, Tls(ca, certificate, key))
    assert isinstance(stream, TlsSocket)
    try:
        shown = stream.facts()
        stream.await_refusal()
    except OSError as error:
        raise TlsFailed(f"{address} ends the connection behind the handshake: {error}") from None
    finally:
        stream.close()
    days = (shown.expires_ms - SYSTEM_CLOCK.now_ms()) // DAY_MS
    found = {
        "address": str(where),
        "version": shown.version,
        "cipher": shown.cipher,
        "subject": shown.subject,
        "issuer": shown.issuer,
        "hosts": list(shown.hosts),
        "ends_in_days": days,
    }
    output.record(found, options.style)


class _Issuer:
    """A CA of this moment."""

    def __init__(self, days: int) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        now = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC)
        self._from = now - timedelta(minutes=5)  # for a clock that is behind
        self._until = now + timedelta(days=days)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._signed("rmq_ray CA", self.key.public_key(), (), is_ca=True)

    def issue(
        self, name: str, hosts: tuple[str, ...]
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """A certificate for these hosts, and its key."""
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        return self._signed(name, key.public_key(), hosts, is_ca=False), key

    def _signed(
        self, name: str, key: ec.EllipticCurvePublicKey, hosts: tuple[str, ...], *, is_ca: bool
    ) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import NameOID

        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rmq_ray CA")])
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._from)
            .not_valid_after(self._until)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if hosts:
            named = [_general_name(host) for host in dict.fromkeys(hosts)]
            builder = builder.add_extension(x509.SubjectAlternativeName(named), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"--host {host!r} is neither a name nor an address", host) from None


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
