"""Apache RocketMQ's unmodified transactional producer against our broker: commit, roll-back, the
check, and a half that a Python producer of its group left.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.ports import ClusterAddress
from tests.support.brokers.open_cluster import CLUSTER, SECRET
from tests.support.brokers.tiny_cluster import FixedDiscovery
from tests.support.outcomes import judging
from tools import interop

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"transaction_timeout_ms": 3_000, "transaction_check_interval_ms": 500}


@pytest.mark.seed("S0-012")
def test_a_java_producer_commits_rolls_back_and_answers_for_its_group(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.support.brokers.open_cluster",
        str(tmp_path),
        "async",
        "120",
        json.dumps(QUICK),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            left = Producer(
                "java-transactions",
                discovery=FixedDiscovery(ClusterAddress(CLUSTER, (address,), SECRET)),
            )
            left.transaction(lambda _message: None).send(
                "Transactions", b"left", tag="tag", keys=["python"]
            )
            left.close()
            done = subprocess.run(
                interop.command("TransactionCheck", address),
                cwd=interop.TARGET,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
        finally:
            server.kill()
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{done.stdout[-1000:]}"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    sends = {
        line["body"]: (line["status"], line["state"], line["same"])
        for line in lines
        if line["check"] == "send"
    }
    assert sends == {
        "commit": ("SEND_OK", "COMMIT_MESSAGE", 1),
        "rollback": ("SEND_OK", "ROLLBACK_MESSAGE", 1),
        "open": ("SEND_OK", "UNKNOW", 1),
    }
    rest = {line["check"]: line["bodies"].split(",") for line in lines if line["check"] != "send"}
    with judging():
        assert "rollback rollback" not in rest["consumed"]
    assert rest == {
        "consumed": ["commit commit", "left python", "open open"],
        "asked": ["left Transactions", "open Transactions"],
    }
