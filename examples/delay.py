"""Reminders that come when they are due, and one that is taken back.

python -m examples.delay                starts a cluster of its own
"""

from __future__ import annotations

import tempfile
import threading
from datetime import UTC, datetime, timedelta

import ray

import rmq_ray as rmq


def main(cluster: str) -> list[tuple[str, float]]:
    """(reminder, how many milliseconds after its time it was stored for consumers), in order of
    arrival.
    """
    due: dict[str, datetime] = {}
    came: list[tuple[str, float]] = []
    enough = threading.Event()

    def handle(messages: list[rmq.MessageExt], _ctx: rmq.ConsumeContext) -> None:
        for message in messages:
            name = bytes(message.body).decode()
            came.append((name, (message.store_ts - due[name]).total_seconds() * 1_000))
        if len(came) >= 3:
            enough.set()

    with (
        rmq.Producer("reminders", cluster=cluster) as producer,
        rmq.PushConsumer(
            "readers",
            listener=handle,
            subscriptions={"reminders": "*"},
            start_from="first",
            cluster=cluster,
            concurrency=1,
        ),
    ):
        for name, seconds in (("third", 2.0), ("first", 0.5), ("taken back", 1.0), ("second", 1.5)):
            due[name] = datetime.now(UTC) + timedelta(seconds=seconds)
            result = producer.send("reminders", name.encode(), deliver_at=due[name])
            if name == "taken back":
                assert result.recall_handle is not None
                producer.recall_message("reminders", result.recall_handle)
        enough.wait(20)
    return came


if __name__ == "__main__":
    ray.init()
    mq = rmq.start(store_path=tempfile.mkdtemp(prefix="rmq-"))
    for reminder, late_ms in main(mq.name):
        print(f"{reminder}: {late_ms:.0f} ms after its time")
    mq.stop()
