"""Values of TransferQueue on real brokers, without Ray and torch: what is true when put, get and
clear return, whoever was killed.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.scan import point_reader
from rmq_ray.client.scan.blocks import address
from rmq_ray.errors import ClientError, NotAuthorized, ValueNotFound
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.transfer_queue.settings import BackendSettings
from rmq_ray.transfer_queue.store import ValueStore
from tests.support.brokers.live_cluster import CLUSTER, ROOT, SECRET, LiveCluster, LiveProcess
from tests.support.outcomes import judging

_numbers = itertools.count()
KILLED = """
import os, signal, sys
import numpy as np
from rmq_ray.transfer_queue import store
from rmq_ray.transfer_queue.settings import BackendSettings

server, secret, cluster, topic, step = sys.argv[1:]
settings = BackendSettings(
    topic, name_servers=server, secret=bytes.fromhex(secret), cluster=cluster
)
values = store.ValueStore(settings)
(place,) = values.put(["0@ids"], [np.arange(100)])
print(place, flush=True)
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if step == "values are stored":
    values._note = die
values.put(["1@ids"], [np.arange(101)])
if step == "the ledger has them":
    die()
values.clear(["0@ids"], [place])
die()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live"), segment_bytes=32 << 20) as live:
        yield live


Opened = Callable[..., ValueStore]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens stores of a cluster's topic; closes them at the end."""
    stores: list[ValueStore] = []

    def begin(cluster: Any, topic: str, **settings: Any) -> ValueStore:
        where = {"name_servers": cluster.lookup().name_servers, "secret": SECRET}
        stores.append(ValueStore(BackendSettings(topic, cluster=CLUSTER, **where, **settings)))
        return stores[-1]

    yield begin
    for store in stores:
        store.close()


def new_topic() -> str:
    return f"experience{next(_numbers)}"


def test_values_are_read_at_their_places_or_by_their_keys_in_any_process(
    cluster: LiveCluster, opened: Opened
) -> None:
    topic = new_topic()
    writer, reader = opened(cluster, topic), opened(cluster, topic)
    rows = np.arange(2_000, dtype=np.int64).reshape(100, 20)
    long = np.arange(9 << 20, dtype=np.uint8)
    keys = [f"{row}@ids" for row in range(100)] + ["0@a\ttext", "0@a\u00a0long", ""]
    places = writer.put(keys, [*rows, {"prompt": "why?"}, long, None])
    assert writer.put([], []) == [] and reader.get([], []) == []
    for asked in (places, [None] * len(keys)):
        *found, text, whole, nothing = reader.get(keys, asked)
        assert np.array_equal(np.stack(found), rows) and text == {"prompt": "why?"}
        assert nothing is None
        assert np.array_equal(whole, long)
    assert reader.get(keys[7:9][::-1], places[7:9][::-1])[1].tolist() == rows[7].tolist()
    assert sorted(reader.live_keys()) == sorted(keys)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often values were pulled by way of a broker, and stores were asked for."""
    found: Counter[str] = Counter()
    pull, invoke = PullConsumer.pull, ClientInstance.invoke

    def pulled(self: Any, queue: Any, expression: Any, offset: int, *more: Any, **by: Any) -> Any:
        found["pulls"] += not queue.topic.endswith("_ledger")
        return pull(self, queue, expression, offset, *more, **by)

    def invoked(self: Any, address: Any, command: Any, *more: Any) -> Any:
        found["stores"] += command.code == RequestCode.STORE_INFO
        return invoke(self, address, command, *more)

    monkeypatch.setattr(PullConsumer, "pull", pulled)
    monkeypatch.setattr(ClientInstance, "invoke", invoked)
    yield found


def some_values(store: ValueStore) -> tuple[list[str], list[str], list[Any]]:
    """Keys, places and values: short ones, long ones, some of several pieces; 40 MiB, which is more
    than a segment.
    """
    sizes = (1 << 20, 8, 4 << 20, 9 << 20, 100, 300_000) * 3
    values = [np.full(size, number, np.uint8) for number, size in enumerate(sizes)]
    keys = [f"{number}@ids" for number in range(len(values))]
    return keys, store.put(keys, values), values


def check_equal(found: list[Any], values: list[Any]) -> None:
    assert len(found) == len(values)
    assert all(np.array_equal(one, other) for one, other in zip(found, values, strict=True))


def held_files(cluster: LiveCluster) -> Counter[str]:
    """Of the store, open in this process, which is the broker's, too."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found[os.readlink(f"/proc/self/fd/{number}")] += 1
    return Counter({path: found[path] for path in found if str(cluster.store_path()) in path})


def test_on_the_brokers_machine_values_are_read_from_its_files(
    cluster: LiveCluster, opened: Opened, asked: Counter[str]
) -> None:
    store = opened(cluster, new_topic())
    keys, places, values = some_values(store)
    check_equal(store.get(keys, places), values)  # what is not visible yet is pulled
    asked.clear()
    before = held_files(cluster)
    found = store.get([*keys, keys[0]], [*places, places[0]])
    check_equal(found, [*values, values[0]])
    assert asked["pulls"] == 0 and asked["stores"] == 1
    for value in found:
        value += 1  # each is its owner's, also of a key that was asked for twice
    check_equal(found, [value + 1 for value in (*values, values[0])])
    again = store.get(keys, places)
    check_equal(again, values)
    check_equal(found, [value + 1 for value in (*values, values[0])])
    there = {address(value) for value in again}
    again.clear()
    assert there & {address(value) for value in store.get(keys, places)}, "memory serves again"
    check_equal(found, [value + 1 for value in (*values, values[0])])
    after = held_files(cluster)
    assert after and not [path for path in after if after[path] > max(1, before[path])]


@pytest.mark.parametrize("why", ["another host", "no right to ask", "no right to read"])
def test_from_elsewhere_values_come_by_way_of_the_broker(
    cluster: LiveCluster,
    opened: Opened,
    asked: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    def refuse(*_: Any) -> Any:
        asked["stores"] += 1
        raise NotAuthorized("no", 1)

    if why == "another host":
        monkeypatch.setattr(point_reader, "host_id", lambda: "0" * 32)
    elif why == "no right to read":
        monkeypatch.setattr(point_reader.os, "access", lambda *_: False)
    else:
        monkeypatch.setattr(point_reader, "ask_for_map", refuse)
    store = opened(cluster, new_topic(), queues=1)
    keys, places, values = some_values(store)
    for _ in range(2):
        check_equal(store.get(keys, places), values)
    assert asked["stores"] == 1 and asked["pulls"]


def test_files_that_are_gone_or_damaged_are_no_reason_for_a_wrong_value(
    tmp_path: Path, opened: Opened, asked: Counter[str]
) -> None:
    with LiveCluster(tmp_path, segment_bytes=32 << 20) as cluster:
        store = opened(cluster, "experience", queues=1)
        keys, places, values = some_values(store)
        check_equal(store.get(keys, places), values)
        log = sorted((cluster.store_path() / "commitlog").iterdir())
        os.rename(log[1], tmp_path / "elsewhere")
        asked.clear()
        check_equal(store.get(keys, places), values)  # the broker has it open
        assert asked["pulls"]
        os.rename(tmp_path / "elsewhere", log[1])
        identity = cluster.store_path() / "rmq_ray" / "identity"
        own = identity.read_text()
        identity.write_text('{"identity": "of another store"}')
        asked.clear()
        check_equal(store.get(keys, places), values)
        assert asked["pulls"]
        identity.write_text(own)
        of_2 = bytes([2]) * 1_000
        (segment,) = [path for path in log if of_2 in path.read_bytes()]
        with segment.open("r+b") as file:
            file.seek(file.read().index(of_2) + 500)
            file.write(b"?")
        with pytest.raises(ValueNotFound, match="2@ids"):
            store.get(keys, places)
        rest = [number for number in range(len(keys)) if number != 2]
        found = store.get([keys[number] for number in rest], [places[number] for number in rest])
        check_equal(found, [values[number] for number in rest])


def test_what_was_cleared_is_told_in_every_process_and_the_rest_stays(
    cluster: LiveCluster, opened: Opened
) -> None:
    topic = new_topic()
    writer, reader = opened(cluster, topic), opened(cluster, topic)
    keys = ["0@ids", "1@ids", "2@ids"]
    places = writer.put(keys, [1, 2, 3])
    assert reader.get(keys, places) == [1, 2, 3]
    writer.clear(keys[:1], places[:1])
    reader.clear([keys[1], "never@put"], [None, None])
    for store, key, place in itertools.product((writer, reader), keys[:2], (None, "its own")):
        with pytest.raises(ValueNotFound, match="was cleared") as told:
            store.get([key], [place and places[keys.index(key)]])
        assert told.value.args[1] == key
    assert reader.get(keys[2:], [None]) == writer.get(keys[2:], places[2:]) == [3]
    (again,) = writer.put(keys[:1], ["again"])
    assert reader.get(keys[:1], [again]) == reader.get(keys[:1], [None]) == ["again"]
    with pytest.raises(ValueNotFound, match="was cleared"):
        reader.get(keys[:1], places[:1])


def test_what_cannot_be_is_told_and_nothing_is_stuck(cluster: LiveCluster, opened: Opened) -> None:
    store = opened(cluster, new_topic())
    with pytest.raises(ClientError, match="tuple cannot be put, nothing was"):
        store.put(["0@ids", "1@ids"], [1, (2, 3)])
    assert store.live_keys() == []
    with pytest.raises(ValueNotFound, match="never put"):
        store.get(["0@ids"], [None])
    with pytest.raises(ClientError, match="no place of a value"):
        store.get(["0@ids"], ["elsewhere"])
    (place,) = store.put(["0@ids"], [1])
    with pytest.raises(ValueNotFound, match=r"\['0@ids'\] is there"):
        store.get(["1@ids"], [place])
    assert store.get(["0@ids"], [place]) == [1]


def test_after_close_every_call_is_told_so(cluster: LiveCluster, opened: Opened) -> None:
    store = opened(cluster, new_topic())
    long = np.zeros(2 << 20, np.uint8)
    places = store.put(["0@ids", "1@ids"], [long, long.copy()])
    store.close()
    for call in (
        lambda: store.put(["0@ids"], [1]),
        lambda: store.put(["0@ids", "1@ids"], [long, long.copy()]),
        lambda: store.get(["0@ids", "1@ids"], places),
        lambda: store.clear(["0@ids"], places[:1]),
        store.live_keys,
    ):
        with pytest.raises(ClientError, match="closed|shut down|make a new one"):
            call()


def test_a_store_that_cannot_begin_leaves_nothing_open(
    cluster: LiveCluster, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[type]()
    for client in (Producer, PullConsumer):
        close = client.close
        monkeypatch.setattr(
            client, "close", lambda self, close=close: [ended.append(type(self)), close(self)]
        )

    def refuse(self: PullConsumer) -> None:
        raise ClientError("no")

    monkeypatch.setattr(PullConsumer, "start", refuse)
    with pytest.raises(ClientError, match="^no$"):
        opened(cluster, new_topic())
    assert set(ended) == {Producer, PullConsumer}


def test_a_saved_state_is_there_again_after_it_was_loaded(
    cluster: LiveCluster, opened: Opened
) -> None:
    topic = new_topic()
    store, other = opened(cluster, topic), opened(cluster, topic)
    places = store.put(["0@ids", "1@ids"], [1, 2])
    saved = store.position()
    store.clear(["0@ids"], places[:1])
    store.put(["2@ids"], [3])
    with pytest.raises(ValueNotFound):
        other.get(["0@ids"], places[:1])
    store.back(saved)
    for one in (store, other, opened(cluster, topic)):
        assert one.get(["0@ids", "1@ids"], places) == [1, 2]
        assert sorted(one.live_keys()) == ["0@ids", "1@ids"]


def test_nothing_is_lost_when_the_broker_is_killed_between_put_and_get(
    tmp_path: Path, opened: Opened
) -> None:
    life = LiveProcess(tmp_path)
    try:
        store = opened(life, "experience")
        rows = np.arange(4_000).reshape(40, 100)
        keys = [f"{row}@ids" for row in range(40)]
        places = store.put(keys[:20], list(rows[:20]))
        store.clear(keys[:1], places[:1])
        life.kill()
        life = LiveProcess(tmp_path)
        places += store.put(keys[20:], list(rows[20:]))
        with judging():
            assert np.array_equal(np.stack(store.get(keys[1:], places[1:])), rows[1:])
            assert opened(life, "experience").live_keys() == keys[1:]
        with pytest.raises(ValueNotFound):
            store.get(keys[:1], places[:1])
    finally:
        life.kill()


@pytest.mark.parametrize(
    ("step", "there"),
    [
        ("values are stored", ["0@ids"]),
        ("the ledger has them", ["0@ids", "1@ids"]),
        ("a tombstone is there", ["1@ids"]),
    ],
)
def test_another_process_goes_on_where_one_was_killed(
    cluster: LiveCluster, opened: Opened, step: str, there: list[str]
) -> None:
    topic = new_topic()
    (server,) = cluster.lookup().name_servers
    command = [sys.executable, "-c", KILLED, server, SECRET.hex(), CLUSTER, topic, step]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -9
    store = opened(cluster, topic)
    with judging():
        assert store.live_keys() == there
        lengths = [len(value) for value in store.get(there, [None] * len(there))]
        assert lengths == [100 + int(key[0]) for key in there]
    if "0@ids" in there:
        assert len(store.get(["0@ids"], [done.stdout.strip()])[0]) == 100
