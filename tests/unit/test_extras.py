"""What is said where a package of an extra is not installed."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

import rmq_ray
from rmq_ray.errors import ExtraMissing, RmqError
from rmq_ray.extras import EXTRAS, WITHOUT, load, named

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
OPTIONAL = PROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("package", EXTRAS)
def test_a_package_comes_with_the_extra_that_is_named(package: str) -> None:
    extra = EXTRAS[package]
    assert any(needed.startswith(package) for needed in OPTIONAL[extra]) and WITHOUT[extra]
    assert not any(needed.startswith(package) for needed in PROJECT["project"]["dependencies"])


def test_all_brings_every_extra_of_users() -> None:
    (everything,) = OPTIONAL["all"]
    brought, seen = set(), {everything}
    while seen:
        inside = seen.pop()
        for extra in inside.partition("[")[2].rstrip("]").split(","):
            brought.add(extra)
            seen |= {needed for needed in OPTIONAL[extra] if needed.startswith("rmq_ray[")}
    assert brought == set(OPTIONAL) - {"all", "demo", "bench", "dev"}


def test_the_error_says_how_it_comes_and_what_works_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "rmq_ray.actors.client_actors", raising=False)
    monkeypatch.delitem(vars(rmq_ray), "ProducerActor", raising=False)
    with pytest.raises(ExtraMissing, match=r"pip install 'rmq_ray\[ray\]'.*name_servers=") as found:
        rmq_ray.ProducerActor  # noqa: B018 - loading it is the test
    assert found.value.args[1:] == ("ray", "ray")
    assert isinstance(found.value, ImportError) and isinstance(found.value, RmqError)


def test_a_part_names_the_extra_that_brings_all_of_it() -> None:
    for extra in WITHOUT:
        assert extra in OPTIONAL
        with pytest.raises(ExtraMissing, match=rf"pyarrow .*rmq_ray\[{extra}\]"), named(extra):
            raise ModuleNotFoundError("no pyarrow", name="pyarrow.lib")


def test_what_is_of_no_extra_stays_what_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), named():
        load("no_such_package")
    with pytest.raises(ZeroDivisionError), named():
        _ = 1 / 0
