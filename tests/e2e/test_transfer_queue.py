"""TransferQueue with its back end ``Rmq``, on real Ray, brokers and PyTorch, in an environment that
has them: TransferQueue's own tests of its back ends, the program of the page, kills at each step.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.outcomes import judging
from tests.support.pages import ROOT, all_blocks
from tools import transfer_queue

TIMEOUT_S = 400
PLUGIN = "tests.support.transfer_queue_backend"
TENSORS = """
import warnings, torch
warnings.simplefilter("error")
from rmq_ray.transfer_queue.values import decode, encode, parcels

def sent(value):
    (parcel,) = parcels([encode(value)])
    return decode(parcel.forms[0], parcel.table(["k"])["body"].to_pylist())

whole = torch.arange(24.).reshape(2, 3, 4)
kinds = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool, torch.cfloat)
values = [whole.to(kind) for kind in kinds] + [whole.transpose(0, 2), whole[:, ::2], whole[0, 0, 0]]
values += [torch.empty(0, 3), whole.clone().requires_grad_(), torch.conj(whole.to(torch.cfloat))]
for value in values:
    found = sent(value)
    assert found.dtype == value.dtype and found.shape == value.shape, value
    assert torch.equal(found.to(torch.cfloat), value.detach().to(torch.cfloat)), value
    found.zero_() if found.numel() else None
rows = torch.ones(64, 8_192)
(parcel,) = parcels([encode(row) for row in rows])
assert parcel.bodies[0].buffers()[2].address == rows.data_ptr()
for form in ("torch no_such_dtype 1", "torch Tensor 1", "torch float32 9"):
    try:
        decode(form, [b"1234"])
    except Exception as error:
        assert type(error).__name__ == "BodyUnreadable", error
    else:
        raise AssertionError(form)
for value in (whole.to_sparse(), torch.nested.nested_tensor([whole[0]], layout=torch.jagged)):
    try:
        encode(value)
    except Exception as error:
        assert type(error).__name__ == "ClientError", error
    else:
        raise AssertionError(value)
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """Of an environment that has PyTorch and TransferQueue."""
    return transfer_queue.python()


def run(python: Path, *words: object, **variables: str) -> str:
    environment = transfer_queue.variables() | variables
    done = subprocess.run(
        [str(python), *map(str, words)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-8_000:]}{done.stderr[-4_000:]}"
    return done.stdout


def theirs(python: Path) -> Path:
    """The folder of TransferQueue's own tests."""
    asked = "import transfer_queue as t; print(t.__file__)"
    return Path(run(python, "-c", asked).strip()).parents[1] / "tests"


def test_tensors_of_every_kind_come_back_as_they_were(python: Path) -> None:
    run(python, "-c", TENSORS)


def test_transfer_queues_own_tests_of_back_ends_pass(python: Path) -> None:
    path = theirs(python) / "e2e" / "test_kv_interface_e2e.py"
    words = ("-m", "pytest", "-q", "-p", PLUGIN, "-W", "default", "-c", os.devnull, path)
    said = run(python, *words, TQ_TEST_BACKEND="Rmq")
    assert " passed" in said and "failed" not in said and "skipped" not in said, said


def test_the_program_of_the_page_runs(python: Path, tmp_path: Path) -> None:
    ((language, program),) = all_blocks("docs/transfer-queue.md")
    assert language == "python"
    before = "import ray, rmq_ray\nray.init(address='local', log_to_driver=False, "
    before += "runtime_env={'worker_process_setup_hook': 'rmq_ray.transfer_queue.register'})\n"
    before += f"mq = rmq_ray.start(store_path={str(tmp_path)!r})\n"
    after = "\nassert [row.tolist() for row in trained] == ids.tolist()\ntq.close()\nmq.stop()\n"
    script = tmp_path / "program.py"
    script.write_text(before + program + after)
    run(python, script)


def test_no_group_is_lost_skipped_or_trained_twice_whoever_is_killed(
    python: Path, tmp_path: Path
) -> None:
    said = run(python, ROOT / "tests" / "e2e" / "transfer_queue_job.py", tmp_path)
    found = json.loads(said.splitlines()[-1])
    with judging():
        assert found["trained"] == [f"{group} True" for group in range(found["groups"])]
        assert found["left"] == []
    assert found["killed"] == {"rollout": 2, "trainer": 3, "broker": 6}
