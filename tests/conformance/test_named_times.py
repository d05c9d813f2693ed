"""A time names the first message stored then or later, whoever names it: one rule for all calls
that take one. RocketMQ's own requests keep RocketMQ's answer, the nearest message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rmq_ray.cli.groups import _target
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.scan.scan_plan import plan_scan
from rmq_ray.client.scan.topic_state import TopicState
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.wire.browse import FROM, BrowseHeader, ask_browse, read_browse
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import OffsetAnswer, SearchOffsetHeader
from rmq_ray.store.front.message_store import MessageStore
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.waiting import eventually

TOPIC, GROUP = "orders", "billing"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
PACKAGE = Path(__file__).parents[2] / "rmq_ray"
HOUR_MS = 3_600_000


class Stored(NamedTuple):
    """A queue of two messages, and when they were stored."""

    cluster: LiveCluster
    admin: Admin
    first_ms: int
    last_ms: int


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    with (
        pytest.MonkeyPatch.context() as old,
        LiveCluster(tmp_path_factory.mktemp("times")) as cluster,
        closing(Admin(cluster)) as admin,
        Producer("web", discovery=cluster) as producer,
    ):
        old.setattr(MessageStore, "is_young", lambda *_: False)
        admin.create_topic(TOPIC, queues=1)
        producer.send(TOPIC, b"first", queue=QUEUE)
        sent_ms = SYSTEM_CLOCK.now_ms()
        eventually(lambda: SYSTEM_CLOCK.now_ms() > sent_ms + 50)
        producer.send(TOPIC, b"last", queue=QUEUE)
        with PullConsumer(GROUP, discovery=cluster, start_from="first") as reader:
            reader.assign([QUEUE])
            found: list[Any] = []
            eventually(lambda: found.extend(reader.poll(2, timeout=1)) or len(found) == 2)
        yield Stored(cluster, admin, *(message.store_ms for message in found))


def moment(at_ms: int) -> datetime:
    """The last microsecond of that millisecond."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms, microseconds=999)


def sought(stored: Stored, at: Any) -> int:
    (row,) = stored.admin.seek_group(GROUP, TOPIC, at)
    return int(row["target"])


def by_command_line(stored: Stored, at_ms: int) -> int:
    texts = (str(at_ms), moment(at_ms).isoformat(), moment(at_ms).astimezone().isoformat())
    (found,) = {sought(stored, _target(text)) for text in texts}
    return found


def begun(stored: Stored, at_ms: int) -> int:
    with PullConsumer(
        f"begin-{at_ms}", discovery=stored.cluster, start_at=moment(at_ms)
    ) as consumer:
        consumer.assign([QUEUE])
        return int(consumer.position(QUEUE))


def asked_of(stored: Stored, at_ms: int) -> int:
    with PullConsumer("looking", discovery=stored.cluster) as consumer:
        return consumer.offsets_for_times({QUEUE: moment(at_ms)})[QUEUE]


def streamed(stored: Stored, at_ms: int) -> int:
    """Where a stream of Spark and of Ray Data begins."""
    with TopicState(stored.cluster, TOPIC) as asked:
        return asked.offsets_of(moment(at_ms), asked.now())[QUEUE]


def planned(stored: Stored, at_ms: int) -> int:
    """Where a read of Spark and of Ray Data begins."""
    plan = plan_scan(stored.cluster, TOPIC, moment(at_ms), "latest", 1)
    return min((split.start for split in plan.splits), default=2)


def browsed(stored: Stored, at_ms: int) -> int:
    """What the console shows."""
    header = BrowseHeader(TOPIC, None, FROM, 0, -1, at_ms, 5)
    answer = stored.admin._ask(stored.admin.masters()["broker-a"], ask_browse(header), "no answer")
    (row,) = read_browse(answer.body_bytes())["queues"]
    return int(row[3])


WAYS: dict[str, Callable[[Stored, int], int]] = {
    "seek_group": lambda stored, at_ms: sought(stored, at_ms),
    "seek_group of a datetime": lambda stored, at_ms: sought(stored, moment(at_ms)),
    "rmq-ray group seek": by_command_line,
    "start_at": begun,
    "offsets_for_times": asked_of,
    "a stream": streamed,
    "a bulk read": planned,
    "the console": browsed,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_time_is_the_first_message_stored_then_or_later(
    stored: Stored, way: Callable[[Stored, int], int]
) -> None:
    first, last = stored.first_ms, stored.last_ms
    assert last - first >= 50
    times = (first - HOUR_MS, first, first + 1, last - 1, last, last + 1, last + HOUR_MS)
    assert [way(stored, at_ms) for at_ms in times] == [0, 0, 1, 1, 1, 2, 2]


def test_rocketmqs_own_question_is_answered_as_rocketmq_does(stored: Stored) -> None:
    def nearest(at_ms: int) -> int:
        fields = SearchOffsetHeader(TOPIC, 0, at_ms).to_fields()
        command = Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields=fields)
        answer = stored.admin._ask(stored.admin.masters()["broker-a"], command, "no answer")
        return OffsetAnswer.from_fields(answer.fields).offset

    first, last = stored.first_ms, stored.last_ms
    assert [nearest(at_ms) for at_ms in (first + 1, last - 1, last + HOUR_MS)] == [0, 1, 1]


@pytest.mark.parametrize(
    ("text", "rooms"),
    [
        ("SearchOffsetHeader(", {"client/instance/time_search.py", "remoting/wire/headers.py"}),
        (
            "store.offset_by_time",
            {"server/groups/group_operations.py", "server/groups/offset_handlers.py"},
        ),
        (".timestamp() * 1", {"client/outgoing/send_request.py", "remoting/tls.py"}),
    ],
)
def test_the_rule_stands_in_one_place(text: str, rooms: set[str]) -> None:
    """RocketMQ's search is behind its own two requests (29, 222); a moment becomes milliseconds in
    ``model.moments``, but for a time of delivery, which is rounded up, and a certificate's end.
    """
    found = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if text in path.read_text()
    }
    assert found == rooms
