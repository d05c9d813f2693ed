"""``rmq-ray tls init``: what it makes is what servers and clients take; ``tls check`` says what a
port shows.
"""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmq_ray.cli.main import main
from rmq_ray.cli.tls import tls_of
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ClientAuth, RemotingLimits, Tls, TlsMode, TlsSettings
from rmq_ray.model.ids import Address
from rmq_ray.remoting import connection
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.topology.reader import parse_topology
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["tls", "init", *arguments])


def test_its_files_serve_a_cluster_that_asks_clients_for_certificates(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    shown = run(str(pem), "--host", "broker.example", "--host", "10.0.0.7")
    assert shown.exit_code == 0 and "[tls]" in shown.output
    names = {path.name for path in pem.iterdir()}
    assert names == {
        f"{name}.{kind}" for name in ("ca", "server", "client") for kind in ("pem", "key")
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in pem.iterdir()} == {0o600}
    told = shown.output[shown.output.index("[tls]") : shown.output.index("copy server.pem")]
    file = told + '\n[[brokers]]\nname = "broker-a"\nstore = { path = "/data/rmq" }\n'
    assert parse_topology(file).brokers[0].config.tls.ca == str(pem / "ca.pem")
    tls = TlsSettings(
        TlsMode.ENFORCING,
        str(pem / "server.pem"),
        str(pem / "server.key"),
        "",
        str(pem / "ca.pem"),
        ClientAuth.REQUIRE,
        str(pem / "client.pem"),
        str(pem / "client.key"),
    )
    with LiveCluster(tmp_path, tls=tls) as cluster:
        connection = Connection(
            Address.parse(cluster.brokers[0].status()["address"]),
            Credentials(CLUSTER, "broker", SECRET),
            RemotingLimits(),
            SYSTEM_CLOCK,
            tls=Tls(str(pem / "ca.pem"), str(pem / "client.pem"), str(pem / "client.key")),
        )
        assert connection.alive
        connection.close()


def test_nothing_is_overwritten_and_a_host_that_is_none_is_refused(tmp_path: Path) -> None:
    assert run(str(tmp_path / "a")).exit_code == 0
    before = (tmp_path / "a" / "ca.key").read_bytes()
    again = run(str(tmp_path / "a"))
    assert again.exit_code == 2 and "is there already" in again.output
    assert (tmp_path / "a" / "ca.key").read_bytes() == before
    wrong = run(str(tmp_path / "b"), "--host", "bücher.example")
    assert wrong.exit_code == 2 and "neither a name nor an address" in wrong.output
    assert not list((tmp_path / "b").iterdir())


@pytest.mark.parametrize("days", ["0", "4000", "x"])
def test_days_have_limits(tmp_path: Path, days: str) -> None:
    assert run(str(tmp_path), "--days", days).exit_code == 2


def test_json_lists_the_files(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["--format", "json", "tls", "init", str(tmp_path / "pem")])
    assert len(json.loads(shown.output)["files"]) == 6


def checked(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["tls", "check", *arguments])


def test_a_port_is_checked_as_a_client_would_see_it(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    run(str(pem), "--days", "40")
    ca = ("--ca", str(pem / "ca.pem"))
    with LiveCluster(tmp_path, tls=tls_of(str(pem))) as cluster:
        port = cluster.brokers[0].status()["address"]
        shown = CliRunner().invoke(main, ["--format", "json", "tls", "check", port, *ca])
        assert shown.exit_code == 0, shown.output
        found = json.loads(shown.output)
        assert (found["subject"], found["issuer"]) == ("rmq_ray server", "rmq_ray CA")
        assert found["hosts"] == ["localhost", "127.0.0.1"] and found["version"] == "TLSv1.3"
        assert found["ends_in_days"] == 39
        unknown = checked(port)
        assert unknown.exit_code == 1 and "ca did not sign" in unknown.output
        by_environment = CliRunner().invoke(
            main, ["tls", "check", port], env={"RMQ_TLS_CA": str(pem / "ca.pem")}
        )
        assert by_environment.exit_code == 0


def test_a_check_hears_that_a_client_certificate_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = tmp_path / "pem"
    run(str(pem))
    tls = tls_of(str(pem)).but(client_auth=ClientAuth.REQUIRE)
    own = ("--certificate", str(pem / "client.pem"), "--key", str(pem / "client.key"))
    ca = ("--ca", str(pem / "ca.pem"))
    with LiveCluster(tmp_path, tls=tls) as cluster:
        port = cluster.brokers[0].status()["address"]
        with monkeypatch.context() as patch:  # the server's thread may be late
            patch.setattr(connection, "RECEIVE_SLICE_MS", 60_000)
            refused = checked(port, *ca)
        assert refused.exit_code == 1 and "client certificate" in refused.output
        assert checked(port, *ca, *own).exit_code == 0


def test_a_check_of_a_plain_port_or_of_none_says_so(tmp_path: Path) -> None:
    run(str(tmp_path / "pem"))
    ca = ("--ca", str(tmp_path / "pem" / "ca.pem"))
    with LiveCluster(tmp_path) as cluster:
        plain = checked(cluster.brokers[0].status()["address"], *ca)
        assert plain.exit_code == 1 and "closed the connection in the TLS handshake" in plain.output
    nobody = checked("127.0.0.1:1", *ca)
    assert nobody.exit_code == 1 and "nothing was sent" in nobody.output
    assert checked("nonsense", *ca).exit_code == 2


def test_up_takes_what_init_made_and_says_what_is_missing(tmp_path: Path) -> None:
    run(str(tmp_path))
    settings = tls_of(str(tmp_path))
    assert settings.mode is TlsMode.ENFORCING and settings.ca == str(tmp_path / "ca.pem")
    (tmp_path / "server.key").unlink()
    told = CliRunner().invoke(main, ["up", "--tls", str(tmp_path)])
    assert told.exit_code == 2 and "server.key is not there" in told.output
    assert "rmq-ray tls init" in told.output


def test_without_cryptography_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    done = run(str(tmp_path / "pem"))
    assert done.exit_code == 1 and "pip install 'rmq_ray[tls-tools]'" in done.output, done.output
