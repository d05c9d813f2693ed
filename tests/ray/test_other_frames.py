"""docs/frames.md runs as it stands there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import rmq_ray as rmq
from tests.support.pages import all_blocks


def test_every_frame_of_the_page_finds_the_same_sums(
    start: Callable[..., rmq.Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    mq = start(name="default")
    with mq.producer() as producer:
        for number in range(100):
            producer.send("orders", b"%d" % number, tag=("open", "paid")[number % 2])
    program = "".join(text for language, text in all_blocks("docs/frames.md"))
    capsys.readouterr()
    exec(program, {"mq": mq, "__name__": "__main__"})  # our own page
    promised = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert len(promised) == 5 and capsys.readouterr().out.splitlines() == promised
