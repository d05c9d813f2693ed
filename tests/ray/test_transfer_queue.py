"""TransferQueue with its back end ``Rmq``, on real Ray, brokers and PyTorch, in an environment that
has them (``tools/transfer_queue.py``): TransferQueue's own tests of its back ends, and ours.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.support.outcomes import OUTCOMES_TO, judging
from tests.support.pages import ROOT
from tests.support.tools import obtained
from tools import transfer_queue

# Ray gives what it starts half a minute; the environment takes as long to be made
pytestmark = [pytest.mark.calm, pytest.mark.timeout(500)]
TIMEOUT_S = 280
OURS = ROOT / "tests" / "e2e" / "transfer_queue_session.py"
THEIRS = {
    "test_kv_interface_e2e.py": 56,
    "test_e2e_lifecycle_consistency.py": 8,
    "test_checkpoint_e2e.py": 11,
}
"""Their files of back ends, and how many of their tests apply to ours."""
NOT_OURS = (
    "test_gdr",  # needs a GPU
    "TestCheckpointRoundtrip and test_tensor_fields",  # these look into SimpleStorage's own files
    "test_storage_saved_is_true",
    "test_load_raises_on_storage_unit_count_mismatch",
)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """How the tests of one session there went."""
    python = obtained(transfer_queue.python)
    theirs = next(python.parents[1].glob("lib/python*/site-packages/tests/e2e"))
    told = tmp_path_factory.mktemp("told") / "outcomes.jsonl"
    words = ["-m", "pytest", "-q", "-p", "tests.support.transfer_queue_backend"]
    words += ["-p", "tests.support.outcomes", "-p", "no:cacheprovider", "-W", "default"]
    words += ["-c", os.devnull, "-k", f"not ({' or '.join(NOT_OURS)})"]
    done = subprocess.run(
        [str(python), *words, *(str(theirs / name) for name in THEIRS), str(OURS)],
        cwd=ROOT,
        env=transfer_queue.variables() | {OUTCOMES_TO: str(told)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stdout[-20_000:], done.stderr[-2_000:])
    return [json.loads(line) for line in told.read_text().splitlines()]


def test_transfer_queues_own_tests_of_back_ends_pass(ended: list[dict[str, Any]]) -> None:
    for name, count in THEIRS.items():
        found = [line["outcome"] for line in ended if name in line["test"]]
        assert found == ["passed"] * count, name


def test_values_the_page_and_kills_in_the_same_session(ended: list[dict[str, Any]]) -> None:
    ours = [line for line in ended if OURS.name in line["test"]]
    with judging():
        assert not [line for line in ours if line.get("judged")]
    assert [line for line in ours if line["outcome"] != "passed"] == [] and len(ours) == 17
