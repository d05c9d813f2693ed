"""Writes docs/compatibility.md: which client of Apache RocketMQ does what, shown by which tests.

    interop/compatibility.toml   features, clients, names of tests
    interop/results.json         how each test ended, written by a run of tests/interop with
                                 RMQ_RAY_INTEROP_RESULTS=1
    interop/window.json          what ran with other Pythons and Rays, written by tools.window

python -m tools.compatibility            write the page
python -m tools.compatibility --check    fail when the page says something else
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tools import interop, window

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
TABLE = ROOT / "interop" / "compatibility.toml"
RESULTS = ROOT / "interop" / "results.json"
TESTS = ROOT / "tests" / "interop"
PASSED, NOT_RUN = "passed", "not run"
OWN_TESTS = "test_rocketmq_suite.py::test_a_test_of_rocketmqs_own_passes"
"""RocketMQ's own tests; each is a case."""
TEXT = """# Compatibility

Which of Apache RocketMQ's clients does what with a cluster of this project, as tests show. This
page is written by `python -m tools.compatibility` from the results of the last run of
`tests/interop`; each number is a test, or a case of one, that passed, and "0 of 1" says that one
has not run since it is there.

{table}

An empty cell is not tested. Clients written for RocketMQ 5 over gRPC, and its proxy, are not
served.

## RocketMQ's own tests

`rocketmq-test` {suite}; not run:

| class | why |
| --- | --- |
| BaseBroadCastIT | the base of other classes, without tests |
| OrderMsgBroadCastIT | RocketMQ itself leaves it out (`@Ignore`) |
| DLedgerProduceAndConsumeIT | starts Apache's brokers with its own replicated log |

Three of the classes can fail on a busy machine although the brokers did nothing wrong. They run
when nothing else does:

- BroadCastNormalMsgRecvFailIT sends as soon as its consumers are started. A consumer of a new
  broadcasting group begins at the end of each queue, which it asks for after its start: what is
  stored before it has asked does not come to it. Beside other JVMs the test failed three times
  (one of 16 messages did not come). RocketMQ's later sources leave it out (`@Ignore`). With no
  other JVM it passed 20 of 20 times beside two busy loops. Against Apache's own brokers it passed
  20 of 20 times on an idle machine, and 20 of 20 beside four busy loops
  (`python -m tools.rocketmq_tests BroadCastNormalMsgRecvFailIT --times 20`).
- NormalMsgDelayIT demands that a listener has each message within 500 ms of its time, by the clock
  of the test's own JVM. Beside other JVMs `testDelayLevel1` failed once ("Timer is not correct").
  Against Apache's own brokers each of its four tests passed 4 of 4 times beside two busy loops.
- NormalMsgTwoSameGroupConsumerIT sends with the 3 s that RocketMQ's client gives a send by default.
  It failed once, where a send took longer beside some fifty runnable threads. Against Apache's own
  brokers it passed 20 of 20 times beside four busy loops.

RocketMQ 5 does not publish the classes of its integration tests (`rocketmq-test`, classifier
`tests`).

## Pythons and Rays

The client alone needs no Ray. With Ray this was run in each environment: start, send, consume, kill
and restart, fail-over, queues, Ray Data, workers, the command line, forks, and two nodes with a
token ({smoke} tests, `make window`):

{window}

Older Rays are refused. Ray Data's job checkpoints (`offset_checkpoint`) need Ray 2.60, Serve's
adapter 2.51; the extra `spark` needs Python 3.11 or 3.12 and Ray up to 2.60.

## Sparks that read tables

[Topics as tables](tables.md), plain Parquet and Iceberg, are read, reported and compacted in the
suite by a Spark 3.5.7 that has nothing of this project; by newer ones, in environments that have
pyspark alone, with `make window`:

{sparks}

## What shows it

| | |
| --- | --- |
{evidence}
"""


def features() -> list[dict[str, object]]:
    """The rows of the table: ``name`` and, by client, tests."""
    return list(tomllib.loads(TABLE.read_text("utf-8"))["feature"])


def results() -> dict[str, str]:
    """``file::test[case]`` -> how it ended."""
    return dict(json.loads(RESULTS.read_text("utf-8")))


def own_tests() -> list[str]:
    """RocketMQ's own integration tests, as results name them."""
    found = interop.suite_tests()
    return [
        f"{OWN_TESTS}[{interop.suite_id(name, test)}]" for name in found for test in found[name]
    ]


def cases(test: str, ended: Mapping[str, str]) -> list[str]:
    """How the cases of a test ended; one that is named whole is its only case."""
    return [how for name, how in ended.items() if name == test or name.split("[")[0] == test]


def rendered() -> str:
    """The page."""
    ended, rows = results(), features()
    clients = list(dict.fromkeys(name for row in rows for name in row if name != "name"))
    lines = [f"| | {' | '.join(clients)} |", "| --- " * (len(clients) + 1) + "|"]
    evidence = []
    for row in rows:
        cells = [_cell(row.get(client, ()), ended) for client in clients]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
        files = {test.split("::")[0] for client in clients for test in _tests(row.get(client, ()))}
        told = ", ".join(f"`tests/interop/{name}`" for name in sorted(files))
        evidence.append(f"| {row['name']} | {told} |")
    own = own_tests()
    whole = all(ended.get(test) == PASSED for test in own)
    classes = len(interop.suite_tests())
    suite = (
        f"4.9.7: all {len(own)} tests of {classes} classes pass" if whole else "4.9.7: see above"
    )
    return TEXT.format(
        table="\n".join(lines),
        suite=suite,
        evidence="\n".join(evidence),
        smoke=len(window.node_ids()),
        window=window.table(),
        sparks=window.table("Spark", window.SPARKS),
    )


def _tests(found: object) -> list[str]:
    return [str(test) for test in found] if isinstance(found, list | tuple) else []


def _cell(tests: object, ended: Mapping[str, str]) -> str:
    how = [one for test in _tests(tests) for one in cases(test, ended) or [NOT_RUN]]
    if not how:
        return ""
    passed = how.count(PASSED)
    return str(passed) if passed == len(how) else f"{passed} of {len(how)}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="docs/compatibility.md")
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    wanted = rendered()
    if parser.parse_args().check:
        same = PAGE.exists() and PAGE.read_text("utf-8") == wanted
        raise SystemExit(0 if same else "docs/compatibility.md: python -m tools.compatibility")
    PAGE.write_text(wanted, "utf-8")


if __name__ == "__main__":
    main()
