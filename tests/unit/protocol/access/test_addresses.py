"""White lists: every form, and what is no white list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.errors import ConfigError
from rmq_ray.protocol.access.addresses import is_white, white_list


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("", "", "10.0.0.1 * ::1"),
        ("  ", "", "10.0.0.1"),
        ("*", "10.0.0.1 ::1 anything", ""),
        ("*.*.*.*", "10.0.0.1 ::1", ""),
        ("*:*:*:*:*:*:*:*", "10.0.0.1 ::1", ""),
        ("192.168.0.7", "192.168.0.7 ::ffff:192.168.0.7", "192.168.0.70 192.168.0.8 ::7"),
        ("192.168.0.{7,8,19}", "192.168.0.7 192.168.0.19", "192.168.0.1 192.168.0.9"),
        ("10.1.1.1,10.1.1.3", "10.1.1.1 10.1.1.3", "10.1.1.2"),
        ("10.1.1.1, 10.2.*", "10.1.1.1 10.2.7.7", "10.1.1.2"),
        ("10.10.103.*", "10.10.103.0 10.10.103.255", "10.10.104.1 110.10.103.1"),
        ("10.10.*.*", "10.10.103.0", "10.11.0.1"),
        ("10.10.*", "10.10.103.0", "10.11.0.1"),
        ("10.*.*.*", "10.1.2.3", "11.1.2.3"),
        ("192.168.0.1-20", "192.168.0.1 192.168.0.20", "192.168.0.0 192.168.0.21"),
        ("192.168.1-2.*", "192.168.1.9 192.168.2.255", "192.168.3.1"),
        ("10.1-5", "10.5.0.0", "10.6.0.0"),
        ("10.1-5.0.1", "10.3.0.1", "10.3.9.9"),
        ("1050:0:0:0:5:600:300c:1", "1050::5:600:300c:1 1050:0:0:0:5:600:300C:1", "1050::5"),
        ("1050::5:600:300C:{1,1f}", "1050::5:600:300c:1f", "1050::5:600:300c:2"),
        ("1050::5:600:300c:*", "1050::5:600:300c:ffff", "1050::5:600:300d:1"),
        ("1050::5:600:300c:1-1f", "1050::5:600:300c:1e", "1050::5:600:300c:20 1.2.3.4"),
        ("fe80:0:0:0:*", "fe80::1 fe80::1%eth0", "fe81::1"),
        ("::1", "::1", "::2"),
    ],
)
def test_a_text_means_what_it_names(text: str, inside: str, outside: str) -> None:
    found = white_list(text)
    assert [host for host in inside.split() if not found.has(host)] == []
    assert [host for host in outside.split() if found.has(host)] == []


@pytest.mark.parametrize(
    "text",
    "10.0.0 10.0.0.256 10.0.0.-1 10.0.0.5-1 10.0.0.1-300 10.0.0.01 10.0.0.{1 10.0.0.{} a.b.c.d "
    "10.0.0.1.2 10.0.0.1/24 1::2::3 :::1 12345::1 ::g 1:2:3:4:5:6:7:8:9 1:2:3 *.1 ,".split(),
)
def test_what_is_no_white_list_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: .*; write it like 10\.10\.103\.\*"):
        white_list(text)


def test_a_text_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="8000 characters"):
        white_list("10.0.0.1" * 1_000)


def test_a_list_of_texts_means_each_of_them() -> None:
    assert is_white(("10.0.0.*", "", "::1"), "::1")
    assert not is_white(("10.0.0.*", ""), "11.0.0.1")
    assert not is_white((), "10.0.0.1")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789abcf.:*-{}, %", max_size=24), st.text(max_size=12))
def test_any_text_is_read_or_refused_and_any_host_answered(text: str, host: str) -> None:
    try:
        found = white_list(text)
    except ConfigError:
        return
    assert found.has(host) in (True, False)
