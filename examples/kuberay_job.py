"""A job of Ray: two tasks send orders, a third one reads them back. ``deploy/kuberay/rayjob.yaml``
runs it on Kubernetes; anywhere else: python -m examples.kuberay_job, beside a cluster that runs.
"""

from __future__ import annotations

import uuid

import ray

import rmq_ray as rmq

TOPIC = "job"
ORDERS, SENDERS = 100, 2


@ray.remote(num_cpus=0.1)
def send(cluster: str, bodies: list[bytes]) -> int:
    """How many are acknowledged: all, or it raises."""
    with rmq.Producer("job", cluster=cluster) as producer:
        return len([producer.send(TOPIC, body) for body in bodies])


@ray.remote(num_cpus=0.1)
def missing(cluster: str, bodies: set[bytes]) -> set[bytes]:
    """Those that the topic does not have."""
    table = rmq.connect(cluster).admin.to_arrow(TOPIC)
    return bodies - set(table["body"].to_pylist())


def main(cluster: str = "default") -> int:
    """How many orders were sent and read; a job that raises has failed."""
    mq = rmq.connect(cluster)
    mq.admin.create_topic(TOPIC, queues=2)
    bodies = [uuid.uuid4().bytes for _ in range(ORDERS)]
    sent = ray.get([send.remote(cluster, bodies[part::SENDERS]) for part in range(SENDERS)])
    lost = ray.get(missing.remote(cluster, set(bodies)))
    if lost:
        raise RuntimeError(f"{len(lost)} of {sum(sent)} orders are missing")
    return sum(sent)


if __name__ == "__main__":
    ray.init()
    print(f"{main()} orders sent and read")
