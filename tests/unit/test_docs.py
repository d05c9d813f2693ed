"""What the pages under docs/ say of the code is so: paths, modules, classes, attributes, request
codes, errors, status fields, links.

Read from the source tree, nothing is imported but codes and errors. A name counts as ours by its
form: a path below a folder of the repository, ``layer/module.py``, ``layer.module.Name``,
``ClassName``, ``ClassName.attribute``. Names of others' classes are listed in ``THEIRS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest

from rmq_ray import errors
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from tests.support.brokers.broker_bench import Bench
from tests.support.pages import all_blocks, blocks
from tests.support.source_names import source
from tests.support.source_rules import PACKAGE, ROOT
from tools import page_tables, reference, shape

DOCS = ROOT / "docs"
GENERATED = {"seed-coverage.md", "reference.md"}
PAGES = [
    *sorted(path for path in DOCS.rglob("*.md") if path.name not in GENERATED),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
FOLDERS = "rmq_ray|tests|docs|tools|examples|benchmarks|interop"
LAYERS = "actors|cli|client|codec|model|protocol|remoting|server|spark|store"
NOT_YET = {"tests/spark", "tests/e2e"}
"""Folders that a page names, and which may be empty: git keeps no empty ones."""
THEIRS = {
    "DefaultMessageStore",
    "StoreWriter",
    "StoreReader",
    "AdminCheck",
    "ClientCheck",
    "GroupMember",
    "Moving",
    "OrderlyCheck",
    "PeerServer",
    "PeerBench",
}
"""Java classes: Apache RocketMQ's, and those of ``interop/``."""

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(rf"(?:{FOLDERS})/[\w./*-]*|\.ci/\w+|[\w-]+\.(?:toml|md)")
_LAYER_FILE = re.compile(
    rf"(?:(?:{LAYERS})/[\w/]*(?:\.py)?|(?:cluster|config|clock|errors|files|ports)\.py)"
)
_DOTTED = re.compile(
    rf"(?:rmq_ray|(?:rmq_ray\.)?(?:{LAYERS})|rmq_ray\.(?:cluster|config|clock|errors|"
    rf"ports))(?:\.\w+)+(?:\(\))?"
)
_CLASS = re.compile(r"([A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)*)(?:\.(\w+))?(?:\(.*\))?")
CITED = ("protocol-behaviour", "remoting", "store-format")
_SECTIONS = r"\d+(?:\.\d+)?(?:-\d+(?:\.\d+)?)?"
_CITATION = re.compile(rf"\b({'|'.join(CITED)}) ({_SECTIONS}(?:(?: end)?(?:, | and ){_SECTIONS})*)")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def spans(page: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of everything in backticks outside of code blocks."""
    text = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text("utf-8"))
    for number, line in enumerate(text.splitlines(), 1):
        for match in _SPAN.finditer(line):
            yield number, match[1]


def fault_of(span: str, page: Path) -> str | None:
    """Why a span that looks like ours is wrong; None when it is right or not ours."""
    if _LAYER_FILE.fullmatch(span):
        path = PACKAGE / span
        return None if path.exists() or path.with_suffix(".py").exists() else "no such module"
    if _PATH.fullmatch(span):
        if span.rstrip("/") in NOT_YET:
            return None
        return (
            None
            if any(True for base in (ROOT, page.parent, DOCS) for _ in base.glob(span.rstrip("/")))
            else "no such file"
        )
    if _DOTTED.fullmatch(span):
        return _dotted_fault(span.removesuffix("()"))
    match = _CLASS.fullmatch(span)
    if (
        match is None
        or match[1] in THEIRS
        or (len(re.findall("[A-Z]", match[1])) < 2 and match[1] not in source().attributes)
    ):
        return None
    if match[1] not in source().attributes:
        return "no such class"
    return (
        f"{match[1]} has no {match[2]}"
        if match[2] and not source().has_attribute(match[1], match[2])
        else None
    )


def _dotted_fault(span: str) -> str | None:
    if span in source().loggers:
        return None
    parts = span.split(".")
    if parts[0] != "rmq_ray":
        parts.insert(0, "rmq_ray")
    for count in range(len(parts), 0, -1):
        names = source().names.get(".".join(parts[:count]))
        if names is None:
            continue
        rest = parts[count:]
        if not rest or (
            rest[0] in names and (len(rest) == 1 or source().has_attribute(rest[0], rest[1]))
        ):
            return None
        return f"{'.'.join(parts[:count])} has no {'.'.join(rest)}"
    return "no such module"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_names_in_backticks_exist(page: Path) -> None:
    wrong = [
        f"{page.name}:{line}: `{span}`: {fault}"
        for line, span in spans(page)
        if (fault := fault_of(span, page)) is not None
    ]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lines_of_a_page_end_at_100_columns_tables_apart(page: Path) -> None:
    assert shape.wide_lines_of(page.read_text("utf-8"), is_page=True) == 0


@pytest.mark.parametrize(
    "span",
    [
        "rmq_ray/nothing.py",
        "store/nothing.py",
        "rmq_ray.store.nothing",
        "store.record.nothing",
        "NoSuchClass",
        "CommitLog.nothing",
        "StoreConfig.nothing",
        "tests/nothing/",
    ],
)
def test_a_name_that_does_not_exist_is_seen(span: str) -> None:
    assert fault_of(span, DOCS / "README.md")


@pytest.mark.parametrize(
    "span",
    [
        "rmq_ray/codec/record.py",
        "codec/record.py",
        "rmq_ray.codec.record",
        "codec.record.HEADER_BYTES",
        "CommitLog",
        "CommitLog.place",
        "StoreConfig.flush",
        "tests/unit",
    ],
)
def test_a_name_that_exists_is_not_complained_of(span: str) -> None:
    assert fault_of(span, DOCS / "README.md") is None


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for target, anchor in _LINK.findall(_FENCE.sub("", page.read_text("utf-8"))):
        if "://" in target:
            continue
        path = (page.parent / target) if target else page
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            wrong.append(f"{target}#{anchor}")
    assert not wrong


def _anchors(page: Path) -> set[str]:
    """As they are made of headings: lower case, blanks to hyphens, other marks dropped."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_names_every_page() -> None:
    linked = {
        (DOCS / target).resolve()
        for target, _ in _LINK.findall((DOCS / "README.md").read_text("utf-8"))
    }
    missing = [
        path.relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*.md")
        if path.resolve() not in linked and path.name != "README.md"
    ]
    assert not missing


@pytest.mark.parametrize("package", ["rmq_ray", "tests"])
def test_every_citation_of_a_specification_leads_to_a_heading_of_its_page(package: str) -> None:
    known = {page: numbered_headings(DOCS / f"{page}.md") for page in CITED}
    wrong = [
        f"{path.relative_to(ROOT)}: {page} {number}"
        for path in (ROOT / package).rglob("*.py")
        for page, number in citations(path.read_text("utf-8"))
        if number not in known[page]
    ]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(protocol-behaviour\n    13 end, 16; remoting 3)", ["13", "16", "3"]),
        (
            "# rules of protocol-behaviour 5, 9-11 and\n# 17.2-17.4",
            "5 9 10 11 17.2 17.3 17.4".split(),
        ),
        ("store-format 2.4 and 2.5, as 4 clients do", ["2.4", "2.5"]),
        ("rmq_ray.remoting; protocol-behaviour: rules", []),
    ],
)
def test_citations_are_found_in_prose(text: str, found: list[str]) -> None:
    assert [number for _, number in citations(text)] == found


def citations(text: str) -> Iterator[tuple[str, str]]:
    """(page, number of a section) of every citation, ranges taken apart."""
    for page, numbers in _CITATION.findall(re.sub(r"\s*\n\s*#?\s*", " ", text)):
        for first, last in re.findall(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?", numbers):
            chapter, _, low = first.rpartition(".")
            for number in range(int(low), int((last or first).rpartition(".")[2]) + 1):
                yield page, f"{chapter}.{number}" if chapter else str(number)


def numbered_headings(page: Path) -> set[str]:
    """Numbers that headings begin with."""
    return set(re.findall(r"^#+ (\d+(?:\.\d+)?) ", page.read_text("utf-8"), re.MULTILINE))


def test_codes_on_the_wire_page_are_those_of_the_code() -> None:
    """Ours have a row each with their bodies, before the generated table of all."""
    text = (
        (DOCS / "wire-protocol.md")
        .read_text("utf-8")
        .partition(page_tables.begin("wire-protocol.md"))[0]
    )
    rows = {
        name: int(number)
        for number, name in re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", text, re.MULTILINE)
    }
    codes = (code for kind in (RequestCode, ResponseCode) for code in kind)
    assert rows == {code.name: code.value for code in codes if code >= 20_000}


@pytest.mark.parametrize("page", page_tables.TABLES)
def test_the_tables_of_requests_and_settings_are_those_of_the_code(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    assert text == page_tables.with_table(page), "write it anew: python -m tools.page_tables"


def test_the_reference_is_that_of_the_docstrings() -> None:
    page = reference.PAGE.read_text("utf-8")
    assert page == reference.rendered(), "write it anew: python -m tools.reference"
    assert shape.wide_lines_of(page, is_page=True) == 0
    assert " at 0x" not in page


def test_the_reference_has_every_public_name_once() -> None:
    page, _, tree = reference.PAGE.read_text("utf-8").partition("## Errors")
    headings = re.findall(r"^### (.+)$", page, re.MULTILINE)
    errors_told = re.findall(r"^\| `(\w+)` \|", tree, re.MULTILINE)
    constants = {name for _, name, value in reference.public() if isinstance(value, Enum)}
    assert sorted([*headings, *errors_told, *constants]) == sorted(
        name for _, name, _ in reference.public()
    )


def test_what_the_page_of_ray_data_shows_is_the_example() -> None:
    example = (ROOT / "examples" / "ray_data.py").read_text("utf-8")
    lines = {line.strip() for line in example.splitlines()}
    shown = [text for _, text in blocks("docs/ray-data.md", "There and back")]
    assert len(shown) == 2
    assert not [line for text in shown for line in text.splitlines() if line.strip() not in lines]


def test_what_the_page_of_training_shows_is_the_example() -> None:
    """Line by line in its order; ``tests/ray/test_train_source.py`` runs it."""
    ((language, shown),) = all_blocks("docs/train.md")
    assert language == "python" and compile(shown, "docs/train.md", "exec")
    example = iter((ROOT / "examples" / "train_resume.py").read_text("utf-8").splitlines())
    missing = [line for line in shown.splitlines() if line not in example]
    assert not missing, "in the example it stands elsewhere, or not at all"


def test_classes_that_the_reference_tells_no_constructor_of_are_public() -> None:
    assert {name for _, name, _ in reference.public()} >= reference.HANDED_OUT


def test_every_public_method_says_what_it_does() -> None:
    assert reference.undocumented() == []


def test_the_page_of_errors_has_a_row_for_each_class() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (?:`(\w+)`)? *\| *(yes|no)? *\|",
        (DOCS / "errors.md").read_text("utf-8"),
        re.MULTILINE,
    )
    classes = {
        name: cls
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.RmqError)
    }
    assert {row[0] for row in rows} == set(classes)
    for name, base, retriable in rows:
        assert not base or classes[name].__bases__[0] is classes[base], name
        assert not retriable or classes[name].retriable is (retriable == "yes"), name


def test_status_fields_of_a_broker_are_explained(tmp_path: Path) -> None:
    bench = Bench(tmp_path).open()
    status = bench.core.status()
    bench.close()
    text = (DOCS / "operations.md").read_text("utf-8")
    table = text[text.index("| broker | meaning |") :].split("\n\n")[0]
    explained = set(re.findall(r"`(\w+)`", table))
    assert set(status) | {"connections", "name_servers"} <= explained
    assert set(status["store"]) <= explained
