"""``tls init``: a CA and certificates for a cluster, as PEM files."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ConfigError
from rmq_ray.files import FileSystem

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

NAMES = ("ca", "server", "client")
EVERYWHERE = ("localhost", "127.0.0.1")
NEXT = """in rmq.toml, and then `rmq-ray up`:
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
    if options.style == "json":
        output.record({"files": made, "hosts": [*EVERYWHERE, *hosts]}, options.style)
        return
    click.echo("\n".join(made))
    click.echo(NEXT.format(folder=folder))


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
