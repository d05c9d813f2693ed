"""Programs on the pages run as they stand there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError

import rmq_ray as rmq
from tests.support.pages import all_blocks, block
from tests.support.waiting import eventually

WORKERS, SINGLE = "docs/workers.md", "Single actors"
OWN = {"name": "default"}
"""The programs name none."""


def run(program: str) -> dict[str, Any]:
    """The names that a program leaves behind. Its classes and functions travel to actors by value,
    as those of a script do.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(program, namespace)  # our own page
    return namespace


def test_single_actors_send_and_add_up_what_comes(own: rmq.Cluster) -> None:
    own.admin.create_topic("amounts", queues=4)
    names = run(block(WORKERS, SINGLE))
    assert names["result"].status is rmq.SendStatus.SEND_OK
    assert ray.get(names["consumer"].ask.remote("value")) == 1_000 + sum(range(101))
    with pytest.raises(rmq.ClientError, match="SHUTDOWN_ALREADY|closed"):
        ray.get(names["producer"].send.remote("amounts", b"late"))


def test_tasks_share_a_queue_of_values(own: rmq.Cluster) -> None:
    (language, program), (_, ahead) = all_blocks("docs/queue.md")
    names = run(program)
    assert language == "python" and names["pages"] == 99 + 100 and names["jobs"].empty()
    names["jobs"].put_nowait_batch(range(10))
    names["jobs"].shutdown()
    exec(ahead, names)  # our own page
    with rmq.Queue("jobs") as left:
        assert left.empty()


def committed(rows: list[dict[str, Any]]) -> int:
    """Messages of the topic itself that the group is done with."""
    return sum(row["committed"] for row in rows if row["topic"] == "thumbnails")


def test_programs_of_other_queues_run_as_they_are_written_here(own: rmq.Cluster) -> None:
    programs = [text for _language, text in all_blocks("docs/coming-from-python.md")]
    names = run("\n".join(programs))
    assert names["seen"].count("/") == 2 and names["values"] == ["/", "/", "/cart"]
    assert names["pages"] == [1, 2, 3]
    eventually(lambda: committed(own.admin.group_lag("resizers")) == 2)
    names["resizers"].stop()


def test_every_frame_of_the_page_finds_the_same_sums(
    own: rmq.Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with own.producer() as producer:
        for number in range(100):
            producer.send("orders", b"%d" % number, tag=("open", "paid")[number % 2])
    program = "".join(text for language, text in all_blocks("docs/frames.md"))
    capsys.readouterr()
    exec(program, {"mq": own, "__name__": "__main__"})  # our own page
    promised = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert len(promised) == 5 and capsys.readouterr().out.splitlines() == promised


@pytest.mark.parametrize(
    ("listener", "settings", "said"),
    [(7, {}, "is not callable"), (len, {"no_such_setting": 1}, "no_such_setting")],
)
def test_an_actor_that_cannot_be_made_says_why_to_the_first_call(
    own: rmq.Cluster, listener: Any, settings: dict[str, Any], said: str
) -> None:
    actor = rmq.ConsumerActor.options(num_cpus=0).remote(
        "nobody", listener, {"amounts": "*"}, cluster=own.name, **settings
    )
    with pytest.raises(ActorDiedError, match=said):
        ray.get(actor.ping.remote())
