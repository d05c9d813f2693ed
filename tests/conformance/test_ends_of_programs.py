"""Programs that end without a ``close``: what they were promised is sent, and they end at once,
with their own exit code and without a word.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq_ray as rmq
from tests.support.brokers.live_cluster import CLUSTER, ROOT, SECRET, LiveCluster, LiveProcess
from tests.support.waiting import eventually

BEGIN = """
import sys
import rmq_ray as rmq

topic, where = sys.argv[1], {"cluster": sys.argv[2], "name_servers": sys.argv[3]}
where["secret"] = bytes.fromhex(sys.argv[4])
"""
FUTURES = """
producer = rmq.Producer(linger_ms=1_000, **where)
for _ in range(50):
    producer.send_async(topic, b"x").add_done_callback(lambda future: future.result())
"""
EXIT = FUTURES + "sys.exit(3)"
FORGOTTEN = """
rmq.Producer(linger_ms=1_000, **where).send_async(topic, b"x")
"""
LATER = """
import threading

producer = rmq.Producer(linger_ms=1_000, **where)
producer.send(topic, b"first")
begun = threading.Event()

def work():
    begun.set()
    threading.main_thread().join()
    for _ in range(20):
        producer.send(topic, b"x")
        producer.send_async(topic, b"x")

threading.Thread(target=work).start()
begun.wait()
"""
AT_EXIT = """
import atexit

producer = rmq.Producer(**where)
producer.send_async(topic, b"x")
atexit.register(producer.close)
atexit.register(producer.send, topic, b"x")
"""
ASYNC = """
import asyncio

async def main():
    producer = rmq.AsyncProducer(**where)
    await asyncio.gather(*(producer.send(topic, b"x") for _ in range(20)))

asyncio.run(main())
"""
IN_A_LOOP = """
import asyncio

producer = rmq.Producer(linger_ms=1_000, **where)

async def cell():
    producer.send(topic, b"x")
    producer.send_async(topic, b"x")
    future = producer.send_async(topic, b"x")
    producer.flush()
    await asyncio.wrap_future(future)
    await asyncio.to_thread(producer.send, topic, b"x")
    async with rmq.AsyncProducer(**where) as other:
        await other.send(topic, b"x")

loop = asyncio.new_event_loop()
loop.run_until_complete(cell())
loop.run_until_complete(cell())
"""
CHAIN = """
first, second = (rmq.Producer(linger_ms=1_000, **where) for _ in range(2))

def again(future):
    future.result()
    second.send_async(topic, b"2").add_done_callback(lambda _: first.send_async(topic, b"3"))

first.send_async(topic, b"1").add_done_callback(again)
"""
OWN_JOIN = """
import threading

class Own(threading.Thread):
    def join(self, timeout=None):
        raise RuntimeError("not for others")

producer = rmq.Producer(linger_ms=1_000, **where)
begun = threading.Event()

def work():
    begun.set()
    threading.Thread.join(threading.main_thread())
    producer.send_async(topic, b"x")

producer.send(topic, b"x")
thread = Own(target=work)
thread.start()
begun.wait()
"""
RELOADED = """
rmq.Producer(linger_ms=1_000, **where).send_async(topic, b"x")
for name in [name for name in sys.modules if name.partition(".")[0] == "rmq_ray"]:
    del sys.modules[name]
import rmq_ray as other

assert other is not rmq
other.Producer(linger_ms=1_000, **where).send_async(topic, b"x")
"""
FORKED = """
import os

rmq.Producer(linger_ms=1_000, **where).send_async(topic, b"x")
child = os.fork()
if child == 0:
    rmq.Producer(linger_ms=1_000, **where).send_async(topic, b"x")
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
"""
CHILDREN = """
import multiprocessing

def work():
    rmq.Producer(linger_ms=1_000, **where).send_async(topic, b"x")

child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
assert child.exitcode == 0
"""
FIRST_SEND = """
with rmq.Producer(**where) as producer:
    producer.send(topic, b"x")
assert "numpy" not in sys.modules
"""
PROGRAMS = {
    "futures": (FUTURES, 50, 0),
    "sys.exit": (EXIT, 50, 3),
    "a producer that nobody holds": (FORGOTTEN, 1, 0),
    "a thread that goes on": (LATER, 41, 0),
    "sends and closes at exit": (AT_EXIT, 2, 0),
    "asyncio.run": (ASYNC, 20, 0),
    "a loop that runs": (IN_A_LOOP, 10, 0),
    "callbacks that send": (CHAIN, 3, 0),
    "a thread with a join of its own": (OWN_JOIN, 2, 0),
    "modules that are loaded again": (RELOADED, 2, 0),
    "a forked child": (FORKED, 2, 0),
    "a child of multiprocessing": (CHILDREN, 1, 0),
    "one message without NumPy": (FIRST_SEND, 1, 0),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live")) as running:
        yield running


def end_of(cluster: LiveCluster, program: str, topic: str) -> tuple[int, str]:
    """(exit code, what it said) of a program that sends there."""
    (server,) = cluster.lookup().name_servers
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program, topic, CLUSTER, server, SECRET.hex()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def stored(cluster: LiveCluster | LiveProcess, topic: str) -> int:
    with rmq.PullConsumer("counting", start_from="first", **where(cluster)) as consumer:
        bounds = map(consumer.watermark_offsets, consumer.fetch_message_queues(topic))
        return sum(last - first for first, last in bounds)


def made(cluster: LiveCluster, topic: str) -> None:
    mq = rmq.connect(CLUSTER, name_servers=cluster.lookup().name_servers, secret=SECRET)
    mq.admin.create_topic(topic, queues=1)
    mq.admin.close()


def where(cluster: LiveCluster | LiveProcess) -> dict[str, Any]:
    return {"cluster": CLUSTER, "name_servers": cluster.lookup().name_servers, "secret": SECRET}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_what_was_promised_is_sent_before_the_program_ends(cluster: LiveCluster, kind: str) -> None:
    program, count, code = PROGRAMS[kind]
    topic = "ends-" + "".join(filter(str.isalpha, kind))
    made(cluster, topic)
    assert end_of(cluster, program, topic) == (code, "")
    assert eventually(lambda: stored(cluster, topic) == count)


def test_callbacks_run_before_the_program_ends(cluster: LiveCluster) -> None:
    made(cluster, "ends-callbacks")
    program = """
producer = rmq.Producer(linger_ms=1_000, **where)
for number in range(3):
    future = producer.send_async(topic, b"x")
    future.add_done_callback(lambda ended, number=number: print(number, ended.result().status.name))
"""
    said = "".join(f"{number} SEND_OK\n" for number in range(3))
    assert end_of(cluster, program, "ends-callbacks") == (0, said)


def test_a_consumer_hands_its_offsets_over_and_holds_nobody_up(cluster: LiveCluster) -> None:
    made(cluster, "ends-read")
    program = """
from tests.support.waiting import eventually

consumer = rmq.PushConsumer(
    "ends", listener=lambda messages, ctx: None, subscriptions={topic: "*"}, **where
)
consumer.start()
assert eventually(lambda: consumer.assignment)
rmq.Producer(**where).send(topic, b"x")
stats = consumer.stats
assert eventually(lambda: stats()["consumed_ok"] == 1 and stats()["in_flight"] == 0)
"""
    assert end_of(cluster, program, "ends-read") == (0, "")
    with rmq.PullConsumer("ends", **where(cluster)) as consumer:
        (queue,) = consumer.fetch_message_queues("ends-read")
        assert eventually(lambda: consumer.committed(queue) == 1)


def test_without_a_broker_the_program_ends_when_its_sends_time_out(tmp_path: Path) -> None:
    program = """
producer = rmq.Producer(send_timeout_ms=300, **where)
producer.send(topic, b"x", timeout=20)
print("kill", flush=True)
sys.stdin.readline()
futures = [producer.send_async(topic, b"x") for _ in range(3)]
"""
    with LiveCluster(tmp_path) as cluster:
        (server,) = cluster.lookup().name_servers
        asked = [sys.executable, "-c", BEGIN + program, "gone", CLUSTER, server, SECRET.hex()]
        running = subprocess.Popen(
            asked,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stdout is not None and running.stdout.readline() == "kill\n"
    said = running.communicate("\n", timeout=30)
    assert running.returncode == 0 and "Traceback" not in said[1]
    assert eventually(lambda: running.poll() == 0)


def test_a_broker_that_comes_back_gets_what_was_given_a_long_time_out(tmp_path: Path) -> None:
    program = """
producer = rmq.Producer(send_timeout_ms=300, **where)
producer.send(topic, b"x", timeout=20)
print("kill", flush=True)
sys.stdin.readline()
producer.send_async(topic, b"x", timeout=60)
"""
    first = LiveProcess(tmp_path)
    (server,) = first.lookup().name_servers
    running = subprocess.Popen(
        [sys.executable, "-c", BEGIN + program, "back", CLUSTER, server, SECRET.hex()],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdin is not None and running.stdout is not None
    assert running.stdout.readline() == "kill\n"
    first.kill()
    running.stdin.write("\n")
    running.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(3)
    second = LiveProcess(tmp_path)
    running.communicate(timeout=60)
    assert running.returncode == 0
    assert eventually(lambda: stored(second, "back") == 2)
    second.kill()
