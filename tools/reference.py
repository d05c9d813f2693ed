"""Writes docs/reference.md from the docstrings of every public name: what ``rmq_ray``,
``rmq_ray.spark`` and ``rmq_ray.data`` export.

python -m tools.reference

A name stands under the heading whose module prefix in ``GROUPS`` fits first; within it those of
``FIRST``, then the rest by name. What two classes share is described where it comes first. A method
whose docstring begins with "See " fulfils an interface and is no user's: it is left out.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, is_typeddict

import rmq_ray
from rmq_ray import config, data, spark
from rmq_ray.actors.client_actors import ClientActorClass
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.admin.health import Health
from rmq_ray.client.consumer.consumer_options import PullOptions, PushOptions
from rmq_ray.config import FailoverConfig
from rmq_ray.setting import Group, Known, known
from rmq_ray.table.tables import Tables

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
COLUMNS = 100
GROUPS = {
    "Start and find a cluster": ("rmq_ray.cluster",),
    "Produce": (
        "rmq_ray.client.producer.",
        "rmq_ray.client.outgoing.",
        "rmq_ray.client.transaction.",
        "rmq_ray.client.interceptors.send_hooks",
        "rmq_ray.model.message",
        "rmq_ray.model.ids",
        "rmq_ray.protocol.transaction",
    ),
    "Administer": ("rmq_ray.client.admin.", "rmq_ray.table."),
    "Spark": ("rmq_ray.spark",),
    "Ray Data": ("rmq_ray.data",),
    "Settings": ("rmq_ray.config", "rmq_ray.client.consumer.consumer_options"),
    "Errors": ("rmq_ray.errors",),
    "Consume": ("",),
}
ORDER = (
    "Start and find a cluster",
    "Produce",
    "Consume",
    "Administer",
    "Spark",
    "Ray Data",
    "Settings",
    "Errors",
)
PRODUCERS = {"Producer", "AsyncProducer", "ProducerActor", "TransactionProducer", "SendSpans"}
"""Public names whose module says too little."""
HANDED_OUT = {
    *("Admin", "Cluster", "ConsumeContext", "ConsumerApp", "Health", "MessageExt"),
    "OrderlyContext",
    *("PulledBatch", "ReceivedMessage", "Tables", "Transaction", "Workers"),
    *("mqd.TopicBatches", "mqs.BatchQuery", "mqs.TopicStream"),
}
"""Classes of which users get objects and make none: how they are made is left out."""
FIRST = (
    *("start", "start_from", "connect", "Cluster", "Admin", "Tables"),
    *("Producer", "AsyncProducer", "ProducerActor", "Message", "MessageQueue", "SendResult"),
    *("SendStatus", "Transaction", "TransactionProducer", "TransactionListener"),
    *("PushConsumer", "ConsumeResult", "Reject", "ConsumeContext", "ConsumeOrderlyResult"),
    *("OrderlyContext", "MessageExt", "sql", "PullConsumer", "PulledBatch", "PullResult"),
    *("SimpleConsumer", "ReceivedMessage", "consumer", "ConsumerApp", "Workers", "workers"),
    *("Autoscale", "ConsumerActor"),
    *("session", "read_topic", "write_topic", "read_stream", "TopicStream", "RmqError"),
    *(
        "ProducerConfig",
        "PushOptions",
        "PullOptions",
        "ConsumerConfig",
        "ClientAuth",
        "Tls",
        "TlsMode",
        "TlsSettings",
        "BrokerConfig",
        "StoreConfig",
    ),
)
INTRODUCTION = """\
# Reference

Every public name with its signature and docstring. Written by `python -m tools.reference`; do not
edit. Imports: `import rmq_ray as rmq`, `from rmq_ray import spark as mqs`, `from rmq_ray import
data as mqd`. Which one to use when: [guide.md](guide.md), [producing.md](producing.md),
[consuming.md](consuming.md), [spark.md](spark.md), [ray-data.md](ray-data.md).
"""
SETTINGS = (
    "Given by keyword to clients, or as `config=`; those of brokers as `broker_settings=` and "
    "`store_settings=` of `start`. A setting's unit is the end of its name; `MIB` and `GIB` are "
    "bytes, `DAY_MS` is a day. Wrong kinds and values beyond the limits are `ConfigError`."
)


def public() -> Iterator[tuple[str, str, Any]]:
    """(heading, name, value) of everything that is exported, and of what that is used with."""
    found = [
        (f"{prefix}{name}", getattr(module, name))
        for prefix, module in _MODULES
        for name in module.__all__
    ]
    used = [
        (value.__name__, value)
        for value in (Admin, Health, Tables, FailoverConfig, PullOptions, PushOptions)
    ]
    for name, value in [*found, *used]:
        if not name.startswith("_"):
            yield _heading(name, value), name, value


_MODULES = (("", rmq_ray), ("mqs.", spark), ("mqd.", data))


def _heading(name: str, value: Any) -> str:
    if name in PRODUCERS:
        return "Produce"
    subject = _subject(value)
    home = getattr(subject, "__module__", "")
    return next(
        heading
        for heading, prefixes in GROUPS.items()
        if any(home.startswith(prefix) for prefix in prefixes)
    )


def _subject(value: Any) -> Any:
    """The function or class; of a Ray actor class the class that was made remote; of a member of an
    enumeration its class.
    """
    if isinstance(value, ClientActorClass):
        return value.shell
    if inspect.isfunction(value) or isinstance(value, type):
        return value
    ours = [cls for cls in type(value).__mro__ if cls.__module__.startswith("rmq_ray")]
    return ours[-1] if ours else type(value)


def rendered() -> str:
    """The page."""
    groups: dict[str, list[tuple[str, Any]]] = {heading: [] for heading in ORDER}
    for heading, name, value in public():
        groups[heading].append((name, value))
    described: dict[Any, str] = {}
    parts = [INTRODUCTION]
    for heading, members in groups.items():
        parts.append(f"## {heading}\n")
        if heading == "Settings":
            parts.append(_filled(SETTINGS))
        members.sort(key=lambda member: _rank(member[0]))
        if heading == "Errors":
            parts.append(_errors(members))
            continue
        for name, value in members:
            if isinstance(value, Enum):
                continue  # a member that its class lists
            parts.append(_entry(name, _subject(value), described))
    return "\n".join(parts).rstrip("\n") + "\n"


def _rank(name: str) -> tuple[int, str]:
    short = name.rpartition(".")[2]
    return (FIRST.index(short) if short in FIRST else len(FIRST), name.lower())


def _entry(name: str, subject: Any, described: dict[Any, str]) -> str:
    """A function or class with all that it offers."""
    short = name.rpartition(".")[2]
    parts = [f"### {name}\n"]
    if not isinstance(subject, type):
        return "\n".join([*parts, _signature(short, subject), _prose(inspect.getdoc(subject))])
    if issubclass(subject, Enum):
        members = ", ".join(f"`{member}`" for member in subject.__members__)
        alone = [
            f"`rmq.{member}`"
            for member, value in subject.__members__.items()
            if getattr(rmq_ray, member, None) is value
        ]
        also = f" Also as {', '.join(alone)}." if alone else ""
        values = _filled(f"Values: {members}.{also}")
        return "\n".join([*parts, _prose(inspect.getdoc(subject)), values])
    if is_typeddict(subject):
        return "\n".join([*parts, _prose(inspect.getdoc(subject))])
    is_settings = subject.__module__ == config.__name__
    if not is_settings and name not in HANDED_OUT:
        parts.append(_signature(short, subject))
    parts.append(_prose(inspect.getdoc(subject)))
    if is_settings:
        parts.append(_settings(subject))
    return "\n".join(parts + _members(name, subject, described))


def _members(name: str, cls: type, described: dict[Any, str]) -> list[str]:
    """Methods with their signatures, properties in a list, and where the rest is described."""
    methods, properties, elsewhere = [], [], {}
    for member, value in inspect.getmembers(cls):
        function = (
            value.fget
            if isinstance(value, property)
            else inspect.unwrap(value)
            if callable(value)
            else None
        )
        if member.startswith("_") or not _is_ours(function):
            continue
        known = described.setdefault(function, name)
        if known != name:
            elsewhere.setdefault(known, []).append(f"`{member}`")
        elif isinstance(value, property):
            properties.append(_item(f"`{member}`: {_flat(inspect.getdoc(value))}"))
        else:
            methods += [_signature(member, value), _prose(inspect.getdoc(value))]
    lists = ["\n".join(properties) + "\n"] if properties else []
    also = [_filled(f"As of `{other}`: {', '.join(names)}.") for other, names in elsewhere.items()]
    return methods + lists + also


def undocumented() -> list[str]:
    """Public names and their public methods without a docstring."""
    return [
        f"{name}.{member}" if member else name
        for _, name, value in public()
        for member, thing in [("", _subject(value)), *inspect.getmembers(_subject(value))]
        if not member.startswith("_")
        and (not member or _is_ours(thing.fget if isinstance(thing, property) else thing))
        and not inspect.getdoc(thing)
    ]


def _is_ours(function: Any) -> bool:
    return (
        inspect.isfunction(function)
        and function.__module__.startswith("rmq_ray")
        and not (inspect.getdoc(function) or "").startswith("See ")
    )


def _signature(name: str, subject: Any) -> str:
    """A block of Python, wrapped; without what Ray adds and what differs from run to run."""
    if isinstance(subject, type) and issubclass(subject, BaseException):
        return f"```python\nclass {name}({subject.__base__.__name__})\n```\n"
    signature = inspect.signature(subject)
    texts: list[str] = []
    star = False
    for parameter in signature.parameters.values():
        if parameter.name.startswith("_") or parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            texts.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        texts.append(_parameter(parameter))
    returns = "" if isinstance(subject, type) else f" -> {signature.return_annotation}"
    text = f"{name}({', '.join(texts)}){returns}"
    if len(text) > COLUMNS:
        text = f"{name}(\n{_packed(texts)}\n){returns}"
    return f"```python\n{text}\n```\n"


def _packed(texts: list[str]) -> str:
    """Parameters on as few lines as they take, none of them cut in two."""
    lines = ["   "]
    for number, text in enumerate(texts, 1):
        piece = f" {text}," if number < len(texts) else f" {text}"
        if len(lines[-1] + piece) > COLUMNS:
            lines.append("   ")
        lines[-1] += piece
    return "\n".join(lines)


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}: {parameter.annotation}"
    if parameter.default is parameter.empty:
        return text
    default = parameter.default
    shown = str(default) if isinstance(default, Enum) else repr(default)
    return f"{text} = {'...' if shown.startswith('<') else shown}"


def _prose(docstring: str | None) -> str:
    """A docstring as a page has it: paragraphs filled, indented and ``>>>`` lines as code. The code
    has no language, so that no formatter lays it out anew.
    """
    parts = []
    for paragraph in re.split(r"\n\s*\n", docstring or ""):
        if paragraph.startswith((">>>", "    ")):
            parts.append(f"```\n{textwrap.dedent(paragraph)}\n```\n")
        else:
            parts.append(_filled(_flat(paragraph)))
    return "\n".join(parts)


def _flat(docstring: str | None) -> str:
    """Text on one line, code in single backticks, marks of Markdown outside of code escaped."""
    text = re.sub(r"\s+", " ", (docstring or "").replace("``", "`")).strip()
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([<*\[])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _filled(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False) + "\n"


def _item(text: str) -> str:
    return textwrap.fill(
        text,
        COLUMNS,
        initial_indent="- ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _errors(members: Iterable[tuple[str, Any]]) -> str:
    """The exported part of the tree; ``errors.md`` has all of it."""
    lines = [
        "What to do about each, and the rest of the tree: [errors.md](errors.md).\n",
        "| error | is a | code | send or ask again | says |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, cls in members:
        says = _flat(str(inspect.getdoc(cls)).partition("\n\n")[0]).replace("|", "\\|")
        again = "yes" if cls.retriable else "no"
        lines.append(f"| `{name}` | `{cls.__base__.__name__}` | {cls.code} | {again} | {says} |")
    return "\n".join(lines) + "\n"


def _settings(cls: type) -> str:
    """Fields with what is known of them, and their comments."""
    source = textwrap.dedent(inspect.getsource(cls))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    comments = _comments(source)
    assert issubclass(cls, Group)
    facts = {name: known(cls, name) for name in cls.__struct_fields__}
    lines = [
        "| setting | default | limits | RocketMQ's name | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    before = node.body[0].end_lineno or 0
    for entry in node.body:
        if isinstance(entry, ast.AnnAssign):
            last, name = entry.end_lineno or 0, ast.unparse(entry.target)
            says = " ".join(
                comments[line] for line in range(before + 1, last + 1) if line in comments
            )
            apache = f"`{facts[name].apache}`" if facts[name].apache else ""
            cells = (f"`{name}`", _default(entry.value), _limits(facts[name]), apache, _flat(says))
            lines.append(f"| {' | '.join(cells)} |".replace("  ", " "))
            before = last
    return "\n".join(lines) + "\n"


def _default(value: ast.expr | None) -> str:
    """As it is written: ``4 * MIB``."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("setting", "within"):
        value = value.args[0]
    return f"`{ast.unparse(value)}`" if value else "required"


def _limits(facts: Known) -> str:
    """With the same words for what is the same: ``1 to DAY_MS``."""
    return facts.limits.replace("'", '"').replace(str(config.DAY_MS), "DAY_MS")


def _comments(source: str) -> dict[int, str]:
    """Line -> comment."""
    return {
        token.start[0]: token.string.lstrip("# ").replace("|", "\\|")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }


def main() -> None:
    """Write the page."""
    PAGE.write_text(rendered(), "utf-8")
    print(f"docs/{PAGE.name}: {len(list(public()))} names")


if __name__ == "__main__":
    main()
