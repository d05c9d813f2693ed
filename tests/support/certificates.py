"""Certificates for tests: a CA of a moment, and what it signed, as PEM files of one directory."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from rmq_ray.config import ClientAuth, Tls, TlsMode, TlsSettings


class Certificates:
    """``settings`` of a server, ``client`` of those who connect to it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self._ca = trustme.CA()
        self.ca = self._written("ca.pem", self._ca.cert_pem.bytes())
        self.renew()
        self.client_pair = self._pair("client", self._ca.issue_cert("client.example"))
        self.strangers_ca = self._written("stranger.pem", trustme.CA().cert_pem.bytes())

    def renew(self, *hosts: str, days: int = 90) -> None:
        """A new server certificate in the old one's files; ``days`` may lie in the past."""
        until = datetime.now(UTC) + timedelta(days=days)
        issued = self._ca.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            not_before=until - timedelta(days=200),
            not_after=until,
        )
        self.server, self.server_key = self._pair("server", issued)

    def settings(
        self, mode: TlsMode = TlsMode.ENFORCING, client_auth: ClientAuth = ClientAuth.NONE
    ) -> TlsSettings:
        return TlsSettings(mode, self.server, self.server_key, "", self.ca, client_auth)

    def client(self, *, known: bool = False) -> Tls:
        """``known``: with a certificate of its own."""
        return Tls(self.ca, *(self.client_pair if known else ()))

    def _pair(self, name: str, issued: trustme.LeafCert) -> tuple[str, str]:
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        return (
            self._written(f"{name}.pem", chain),
            self._written(f"{name}.key", issued.private_key_pem.bytes()),
        )

    def _written(self, name: str, content: bytes) -> str:
        """Replaced whole: a server reads it at any moment."""
        fresh, final = self.directory / f"{name}.new", self.directory / name
        fresh.write_bytes(content)
        os.replace(fresh, final)
        return str(final)
