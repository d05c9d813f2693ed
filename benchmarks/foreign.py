"""RocketMQ's own Java client (4.9.7): the same program against our broker, against Apache's, and
against ours with every request signed for an account.
"""

from __future__ import annotations

import rmq_ray as rmq
from benchmarks import peers
from benchmarks.scene import Scene

WORK = {
    "batch_100": ("batches of 1,000 x 100 B", 0.6),
    "batch_1k": ("batches of 400 x 1 KB", 0.7),
    "consume": ("push consumption, 100 B, default settings", 0.5),
    "sync_1": ("single sends, 1 thread", 1.0),
    "sync_64": ("single sends, 64 threads", 0.6),
    "async": ("asynchronous sends", 0.3),
}
"""What the Java client does, and the ratio to Apache's broker to reach."""
SIGNED = ("batch_1k", "sync_1", "sync_64")
SIGNED_GOAL = 0.85
KEYS = {"access_key": "benchmarks", "secret_key": "a secret of benchmarks"}
ENVIRONMENT = {f"INTEROP_{name.upper()}": value for name, value in KEYS.items()}


def run(scene: Scene) -> None:
    """Ours open, ours as an account, and, with ``--peers``, Apache's right before."""
    names = list(WORK)
    apache = peers.java_client(names, scene.scale) if scene.with_peers else {}
    with scene.cluster(foreign="open") as mq:
        ours = peers.java_client(names, scene.scale, *_where(mq))
    with scene.cluster(foreign="acl") as mq:
        mq.admin.acl.create(*KEYS.values(), default_topic="PUB|SUB", default_group="SUB")
        signed = peers.java_client(list(SIGNED), scene.scale, *_where(mq), account=ENVIRONMENT)
    tell = scene.report.rate
    for name, (what, goal) in WORK.items():
        peer = apache.get(name, {}).get("per_second")
        rate = ours[name]["per_second"]
        tell(f"Java client, {what}", rate, "Apache's broker", peer, goal)
    for name in SIGNED:
        rate, plain = signed[name]["per_second"], ours[name]["per_second"]
        tell(f"Java client, {WORK[name][0]}, signed", rate, "unsigned", plain, SIGNED_GOAL)


def _where(mq: rmq.Cluster) -> tuple[str, str]:
    return "--address", mq.addresses["name_servers"][0]
