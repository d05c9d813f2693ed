"""A scaled group of consumer actors from one decorated function: it grows with the backlog and
drains when it is stopped.

python -m examples.workers
"""

from __future__ import annotations

import time

import ray

import rmq_ray as rmq

TOPIC = "invoices"


@rmq.consumer(TOPIC, group="billing", tags="paid", start_from="first")
def bill(msg: rmq.MessageExt) -> None:
    """One invoice. An exception would bring it again later; rmq.Reject would put it into the
    dead-letter topic.
    """
    time.sleep(0.002)


def main(cluster: str = "default") -> int:
    """Send 2,000 invoices, let one to three workers bill them; returns how many stay unbilled."""
    mq = rmq.connect(cluster)
    mq.admin.create_topic(TOPIC, queues=6)
    with rmq.Producer("shop", cluster=cluster) as p:
        for _ in range(20):
            p.send_batch([rmq.Message(TOPIC, b"invoice", tag="paid") for _ in range(100)])
    scale = rmq.Autoscale(actors_max=3, lag_per_actor=300, up_after_s=0.5, every_s=0.2)
    with bill.deploy(num_actors=1, num_cpus=0.2, cluster=cluster, autoscale=scale) as workers:
        deadline = time.monotonic() + 60
        while (lag := workers.lag()) and time.monotonic() < deadline:
            print(f"{len(workers)} workers, {lag} invoices to go")
            time.sleep(1)
    return lag


if __name__ == "__main__":
    ray.init()
    queue = rmq.start("default", store_path="rmq-data")
    print("unbilled:", main())
    queue.stop()
