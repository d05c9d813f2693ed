"""Topology files: what they may say, and that everything else is refused with its line and the
remedy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.config import ClientAuth, FlushMode, ForeignClients, TlsMode
from rmq_ray.errors import ConfigError
from rmq_ray.topology.reader import parse_topology, read_topology
from rmq_ray.topology.rules import Topology
from rmq_ray.topology.source import TopologyText

FILE = """\
cluster = "prod"
foreign = "open"
[defaults]
auto_create_topics = false
[defaults.store]
flush = "sync"
disk_full_ratio = 1

[[name_servers]]
port = 29876
resource = "store_a"

# A comment before a broker.
[[brokers]]
name = "broker-a"
resource = "store_a"
port = 20911
store = { path = "/data/rmq" }

[[brokers]]
name = "broker-b"
resource = "store_b"
port = 20911
auto_create_topics = true
delay_levels = \"\"\"1s
5s\"\"\"
advertise = "203.0.113.7"
[brokers.store]
path = "/data/rmq"
flush = "async"
"""


def test_a_file_says_which_brokers_there_are_and_defaults_hold_where_a_broker_says_nothing() -> (
    None
):
    found = parse_topology(FILE)
    first, second = (spec.config for spec in found.brokers)
    assert (found.cluster, first.broker_name, second.broker_name) == (
        "prod",
        "broker-a",
        "broker-b",
    )
    assert (first.store.flush, second.store.flush, second.store.disk_full_ratio) == (
        FlushMode.SYNC_FLUSH,
        FlushMode.ASYNC_FLUSH,
        1.0,
    )
    assert (first.auto_create_topics, second.auto_create_topics) == (False, True)
    assert (first.host, second.advertise, first.cluster_name, first.foreign) == (
        "",
        "203.0.113.7",
        "prod",
        ForeignClients.OPEN,
    )
    (server,) = found.name_servers
    assert (server.config.port, server.config.directory, server.config.foreign) == (
        29_876,
        "/data/rmq.name-server-0",
        ForeignClients.OPEN,
    )
    assert found.resources == {
        "broker-a": "store_a",
        "broker-b": "store_b",
        "name-server-0": "store_a",
    }


def test_the_shortest_file_is_one_broker_and_a_relative_store_lies_beside_the_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "rmq.toml").write_text(
        '[[brokers]]\nname = "broker-a"\nstore = { path = "data" }\n'
    )
    found = read_topology(tmp_path / "rmq.toml")
    assert (found.cluster, len(found.name_servers), found.brokers[0].config.store.path) == (
        "default",
        1,
        str(tmp_path / "data"),
    )
    assert found.resources == {}


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('cluster = "prod"', 'cluster = "p r"', 1, "cluster must be 1 to 64"),
        (
            'foreign = "open"',
            'foreign = "ajar"',
            2,
            "foreign must be one of 'closed', 'open', 'acl', not 'ajar'",
        ),
        (
            'foreign = "open"',
            'colour = "red"',
            2,
            "unknown key 'colour'; known here are accounts, brokers, cluster",
        ),
        ("[defaults]", "[default]", 3, "unknown key 'default'"),
        (
            "auto_create_topics = false",
            "auto_create_topic = false",
            4,
            "unknown key 'auto_create_topic'",
        ),
        (
            "auto_create_topics = false",
            "auto_create_topics = 0",
            4,
            "auto_create_topics must be true or false, not 0",
        ),
        ("auto_create_topics = false", "port = 1", 4, "unknown key 'port'"),
        (
            'flush = "sync"',
            'flush = "often"',
            6,
            "flush must be one of 'async', 'sync', not 'often'",
        ),
        (
            'flush = "sync"',
            "segment_bytes = 4_097",
            6,
            "segment_bytes must be a multiple of 4096, not 4097",
        ),
        ("disk_full_ratio = 1", "disk_full_ratio = 0.1", 7, "disk ratios must rise"),
        (
            "[[name_servers]]\n",
            "[name_servers]\n",
            9,
            "name_servers is a list of tables: begin each with [[name_servers]]",
        ),
        ("port = 29876", "prot = 29876", 10, "unknown key 'prot'"),
        (
            "port = 29876",
            "port = 70000",
            10,
            "port must be 0 (any free one, kept) to 65535, not 70000",
        ),
        ("port = 29876", "port = -1", 10, "port must not be negative"),
        ("port = 29876", 'port = "x"', 10, "port must be a whole number, not 'x'"),
        ("port = 29876", "port = 20911", 17, "port 20911 is that of line 10"),
        (
            'resource = "store_a"\n\n',
            "resource = 1\n\n",
            11,
            "resource must be the name of a Ray resource, or label=value of a node, not 1",
        ),
        ('name = "broker-a"', 'nam = "broker-a"', 15, "unknown key 'nam'"),
        ('name = "broker-a"', 'name = "a/b"', 15, "name must be 1 to 64"),
        ('name = "broker-a"\n', "", 14, "a broker needs a name"),
        (
            'store = { path = "/data/rmq" }',
            'store = { path = "/data/rmq", speed = 1 }',
            18,
            "unknown key 'speed'",
        ),
        (
            'store = { path = "/data/rmq" }',
            'store = { path = "data/rmq" }',
            18,
            "'data/rmq' lies on another node: give an absolute path",
        ),
        (
            'store = { path = "/data/rmq" }',
            'store = { flush = "sync" }',
            18,
            "a broker needs a store",
        ),
        (
            'store = { path = "/data/rmq" }',
            'store = "/data/rmq"',
            18,
            "store is a table, not '/data/rmq': write [brokers.store]",
        ),
        (
            'store = { path = "/data/rmq" }',
            'store = { path = "/data/rmq" }\nreplicas = 1',
            19,
            "begin each with [[brokers.replicas]]",
        ),
        (
            'store = { path = "/data/rmq" }',
            'store = { path = "/data/rmq" }\nmaster = "h:1"',
            19,
            "unknown key 'master'",
        ),
        (
            'store = { path = "/data/rmq" }',
            'store = { path = "/data/rmq" }\nhost = "0.0.0.0"',
            19,
            "host '0.0.0.0' is nobody's address",
        ),
        (
            'store = { path = "/data/rmq" }',
            'store = { path = "/data/rmq" }\nbroker_id = 1',
            19,
            "unknown key 'broker_id'",
        ),
        (
            'name = "broker-b"',
            'name = "broker-a"',
            21,
            "two masters of the name 'broker-a', the first on line 15",
        ),
        (
            'advertise = "203.0.113.7"',
            "advertise = 1",
            27,
            "advertise must be a text in quotes, not 1",
        ),
        (
            'resource = "store_b"\nport = 20911',
            'resource = "store_a"\nport = 20912',
            28,
            "store /data/rmq is shared with the broker on line 18",
        ),
        ('flush = "async"', "flush = []", 30, "flush must be one of"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_remedy(
    old: str, new: str, line: int, message: str
) -> None:
    assert FILE.count(old) >= 1
    with pytest.raises(ConfigError) as refused:
        parse_topology(FILE.replace(old, new, 1), "some/rmq.toml")
    assert str(refused.value.args[0]).startswith(
        f"some/rmq.toml, line {line}: "
    ) and message in str(refused.value)


def test_a_store_inside_another_is_shared_and_on_different_nodes_the_same_path_is_not() -> None:
    two = (
        '[[brokers]]\nname = "a"\nresource = "{}"\nstore = {{ path = "/data" '
        '}}\n[[brokers]]\nname = "b"\nresource = "{}"\nstore = {{ path = "/data/b" }}\n'
    )
    with pytest.raises(
        ConfigError, match=r"line 8: store /data/b is shared with the broker on line 4"
    ):
        parse_topology(two.format("x", "x"))
    assert len(parse_topology(two.format("x", "y")).brokers) == 2


def test_files_that_are_no_toml_or_cannot_be_read_or_name_no_broker_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"not TOML: .*line 2"):
        parse_topology('cluster = "a"\n[[brokers]')
    with pytest.raises(ConfigError, match="No such file.*--config"):
        read_topology(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'cluster = "\xe9"')
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_topology(tmp_path / "latin.toml")
    with pytest.raises(ConfigError, match=r"no brokers; add \[\[brokers\]\]"):
        parse_topology('cluster = "a"')
    with pytest.raises(ConfigError, match="10 name_servers are too many: at most 9"):
        parse_topology(
            "[[name_servers]]\n" * 10 + '[[brokers]]\nname = "a"\nstore = { path = "/s" }\n'
        )


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("cluster",), 1),
        (("defaults", "store", "flush"), 6),
        (("brokers", 0), 14),
        (("brokers", 1, "delay_levels"), 25),
        (("brokers", 1, "missing"), 20),
        (("x",), 1),
    ],
)
def test_the_line_of_a_value_is_where_it_begins(key: tuple[str | int, ...], line: int) -> None:
    assert TopologyText("", FILE).line_of(key) == line


def test_a_topology_is_all_that_its_file_says_and_nothing_else() -> None:
    assert isinstance(parse_topology(FILE), Topology) and parse_topology(FILE) == parse_topology(
        FILE
    )


def test_a_first_send_makes_no_topic_unless_the_file_says_so() -> None:
    silent = FILE.replace("auto_create_topics = false\n", "")
    assert [spec.config.auto_create_topics for spec in parse_topology(silent).brokers] == [
        False,
        True,
    ]
    allowed = FILE.replace("auto_create_topics = false", "auto_create_topics = true")
    assert parse_topology(allowed).brokers[0].config.auto_create_topics


def test_the_file_at_the_top_level_is_right() -> None:
    found = read_topology(Path(__file__).resolve().parents[3] / "rmq.toml")
    assert [spec.config.broker_name for spec in found.brokers] == [
        "broker-a"
    ] and found.resources == {}


TLS = """
[tls]
certificate = "pem/server.pem"
key = "/etc/rmq/server.key"
ca = "pem/ca.pem"
client_auth = "optional"
[[brokers]]
name = "broker-a"
store = { path = "/data/rmq" }
allow_same_node = true
[[brokers.replicas]]
store = { path = "/data/rmq-1" }
"""


def test_tls_is_that_of_all_members_and_enforcing_unless_the_file_says_otherwise() -> None:
    read = parse_topology(TLS, "/srv/rmq.toml")
    tls = read.brokers[0].config.tls
    assert tls.mode is TlsMode.ENFORCING and tls.client_auth is ClientAuth.OPTIONAL
    assert (tls.certificate, tls.key) == ("/srv/pem/server.pem", "/etc/rmq/server.key")
    assert read.name_servers[0].config.tls == read.brokers[0].replicas[0].config.tls == tls
    softer = parse_topology(TLS.replace("[tls]", '[tls]\nmode = "permissive"'))
    assert softer.brokers[0].config.tls.mode is TlsMode.PERMISSIVE
    assert parse_topology(FILE).brokers[0].config.tls.mode is TlsMode.DISABLED


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("ca =", "cas =", "line 5: unknown key 'cas'; known here are ca, certificate"),
        ('ca = "pem/ca.pem"', "", "line 2: tls needs ca, the PEM file"),
        ('"optional"', '"sure"', "line 6: client_auth must be one of 'none', 'optional'"),
    ],
)
def test_what_is_wrong_with_tls_is_told_with_its_line(before: str, after: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_topology(TLS.replace(before, after))


def test_accounts_come_from_a_file_beside_this_one_where_clients_need_them() -> None:
    acl = FILE.replace('foreign = "open"', 'foreign = "acl"\naccounts = "plain_acl.yml"', 1)
    assert parse_topology(acl, "/etc/rmq/rmq.toml").accounts == "/etc/rmq/plain_acl.yml"
    for wrong, said in (
        (acl.replace('"acl"', '"closed"', 1), "accounts needs foreign = 'acl'"),
        (acl.replace('"plain_acl.yml"', '""', 1), "the path of a plain_acl.yml"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_topology(wrong, "/etc/rmq/rmq.toml")
