"""YAML that strangers' tools wrote: read as it is, or refused with the place of the fault."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.errors import ConfigError
from rmq_ray.topology.yaml_text import YAML_BYTES_MAX, read_yaml

PLAIN_ACL = """\
# as Apache RocketMQ ships it
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
"""


def test_a_file_of_apache_is_read() -> None:
    assert read_yaml(PLAIN_ACL, "plain_acl.yml") == {
        "globalWhiteRemoteAddresses": ["10.10.103.*", "192.168.0.*"],
        "accounts": [
            {
                "accessKey": "RocketMQ",
                "secretKey": 12345678,
                "whiteRemoteAddress": None,
                "admin": False,
                "topicPerms": ["topicA=DENY", "topicB=PUB|SUB"],
            }
        ],
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: 'a' stands here for the second time"),
        ("a:\n  - b: 1\n    b: 2\n", "line 3: 'b' stands here for the second time"),
        ("a: &x [1]\nb: *x\n", "line 2: anchors are not read"),
        ("a: [1\nb: 2\n", "line 2"),
        ("a: !!python/object/apply:os.system [ls]\n", "line 1: could not determine a constructor"),
        ("a: 2001-99-99\n", "no YAML"),
        ("a: 1\n---\nb: 2\n", "line 2"),
        ("[" * 100_000, "no YAML"),
        (b"\xff\xfe\x00", "no YAML"),
        (" " * (YAML_BYTES_MAX + 1), "more than 8 MiB"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_cannot_be_trusted_is_refused_with_its_place(text: str | bytes, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_yaml(text, "plain_acl.yml")
    assert told in raised.value.message and "plain_acl.yml" in raised.value.message


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@,? \n\t01.", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = read_yaml(text, "any")
    except ConfigError as error:
        assert "any" in error.message
    else:
        assert found is None or isinstance(found, str | int | float | bool | list | dict | date)
