"""Other systems' brokers and clients, run on the same work: Apache RocketMQ 4.9.7 in two JVMs,
Apache Kafka and librdkafka. Those that a Python user would pick: ``python_peers``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks import kafka_peer

BESIDE = {
    "produce": [
        "sync_1",
        "sync_64",
        "async",
        "async_labels",
        "batch_100",
        "batch_1k",
        *kafka_peer.BENCHES,
    ],
    "consume": ["consume", "consume_1k", "consume_32", "consume_1k_32"],
    "latency": ["latency"],
    "flush": ["sync_flush_64"],
    "dataframe": [],  # starts its own
}
"""What runs right before a part, by the part's name."""
PATIENCE_S = 1_800.0


def run(names: list[str], scale: float) -> dict[str, dict[str, Any]]:
    """Their figures by name, each side with its own broker."""
    java = [name for name in names if name not in kafka_peer.BENCHES]
    found = java_client(java, scale) if java else {}
    if kafka := [name for name in names if name in kafka_peer.BENCHES]:
        command = ["-m", "benchmarks.kafka_peer", *kafka]
        found |= _figures(f"Kafka {kafka_peer.KAFKA}", command, scale, kafka)
    return found


def java_client(
    names: list[str], scale: float, *where: str, account: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Figures of RocketMQ's Java client: against Apache's broker, or that of ``--address``."""
    command = ["tools/interop.py", "bench", *names, *where]
    return _figures("RocketMQ 4.9.7", command, scale, names, account or {})


def _figures(
    product: str,
    command: list[str],
    scale: float,
    names: list[str],
    environment: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, *command, f"--scale={scale}"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        env={**os.environ, **(environment or {})},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        print(f"    Apache {product}, {line}", flush=True)
    found = {line["bench"]: line for line in lines}
    if silent := sorted(set(names) - set(found)):
        sys.exit(
            f"no figure came from the peers for {', '.join(silent)}: their targets cannot be "
            f"judged; see what they wrote above"
        )
    return found
