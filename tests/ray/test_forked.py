"""Processes that are forked from one that uses Ray: none of Ray's threads are in them, and yet they
can send and consume.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import ray

import rmq_ray as rmq

WAIT_S = 20.0


def in_child(work: Callable[[], str]) -> str:
    """What ``work`` says in a forked process, or which error ended it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except rmq.RmqError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:  # noqa: BLE001 - the parent asserts on it
            said = repr(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], WAIT_S)
        return os.read(reading, 65_536).decode() if ready else "nothing, within 20 s"
    finally:
        os.close(reading)
        if not ready:
            os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_forked_child_makes_producers_and_consumers_of_its_own(mq: rmq.Cluster) -> None:
    mq.admin.create_topic("forks", queues=1)
    inherited = rmq.Producer("web", cluster=mq.name)
    inherited.send("forks", b"parent")

    def send_and_read() -> str:
        try:
            inherited.send("forks", b"never")
        except rmq.ClientError as error:
            assert "fork" in str(error)
        with rmq.Producer("web", cluster=mq.name) as own:
            own.send("forks", b"child")
        with rmq.PullConsumer("forked", cluster=mq.name, start_from="first") as consumer:
            consumer.assign(consumer.fetch_message_queues("forks"))
            found: list[bytes] = []
            for _ in range(20):
                found += [message.body for message in consumer.poll(10, timeout=1.0)]
                if len(found) == 2:
                    break
        return repr(found)

    with inherited:
        assert in_child(send_and_read) == "[b'parent', b'child']"
        assert inherited.send("forks", b"parent again").queue_offset == 2


def test_a_forked_child_uses_a_queue_of_its_parent(mq: rmq.Cluster) -> None:
    queue = rmq.Queue("forked-queue", cluster=mq.name)
    queue.put("parent")

    def exchange() -> str:
        found = queue.get(timeout=10)
        queue.put("child")
        queue.shutdown()
        return str(found)

    assert in_child(exchange) == "parent"
    assert queue.get(timeout=10) == "child"
    queue.shutdown()


def test_what_a_forked_child_cannot_do_is_refused_at_once_and_says_why(mq: rmq.Cluster) -> None:
    said = in_child(
        lambda: repr(rmq.Producer("web", cluster="never-looked-up").send("forks", b"x"))
    )
    assert (
        said.startswith("ClusterError: this process was forked from one that uses Ray")
        and "spawn" in said
    )
    assert in_child(lambda: repr(mq.status())).startswith("ClusterError: this process was forked")
    assert ray.is_initialized() and mq.status()["controller"]
