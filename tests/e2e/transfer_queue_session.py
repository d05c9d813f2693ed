"""What runs where PyTorch is, beside TransferQueue's own tests: tensors of every kind, the program
of the page, and rollouts, a trainer and a broker that are killed at each step of a put, a get and a
clear. ``tests/ray/test_transfer_queue.py`` starts it.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from ray.exceptions import RayActorError
from tensordict import TensorDict

import rmq_ray as rmq
from rmq_ray.errors import BodyUnreadable, ClientError, ConfigError
from rmq_ray.transfer_queue import backend
from rmq_ray.transfer_queue.settings import BackendSettings
from rmq_ray.transfer_queue.store import ValueStore
from rmq_ray.transfer_queue.values import decode, encode, parcels
from tests.support.outcomes import judging
from tests.support.pages import all_blocks
from tests.support.transfer_queue_backend import BACKEND
from tests.support.waiting import eventually

SAMPLES = 4
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find it
PAUSE_S = 0.5
KILLS = (
    ("rollout", "itself", "_note", "before"),
    ("rollout", "itself", "put", "after"),
    ("rollout", "broker", "_sent", "before"),
    ("rollout", "broker", "_note", "before"),
    ("rollout", "broker", "put", "after"),
    ("trainer", "itself", "_read", "before"),
    ("trainer", "itself", "clear", "before"),
    ("trainer", "itself", "clear", "after"),
    ("trainer", "broker", "_read", "before"),
    ("trainer", "broker", "get", "after"),
    ("trainer", "broker", "_note", "before"),
)
"""Who works, who is killed, at which method of the store: when it begins, or has returned."""


# --- tensors --------------------------------------------------------------------------------------

WHOLE = torch.arange(24.0).reshape(2, 3, 4)
KINDS = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool, torch.cfloat)


@pytest.mark.parametrize(
    "value",
    [
        *(WHOLE.to(kind) for kind in KINDS),
        WHOLE.transpose(0, 2),
        WHOLE[:, ::2],
        WHOLE[0, 0, 0],
        torch.empty(0, 3),
        WHOLE.clone().requires_grad_(),
        torch.conj(WHOLE.to(torch.cfloat)),
    ],
)
def test_a_tensor_comes_back_equal_of_the_same_type_and_may_be_written_to(value: Any) -> None:
    (parcel,) = parcels([encode(value)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = decode(parcel.forms[0], parcel.table(["k"])["body"].to_pylist())
    assert found.dtype == value.dtype and found.shape == value.shape
    assert torch.equal(found.to(torch.cfloat), value.detach().to(torch.cfloat))
    found.zero_()


def test_rows_of_a_tensor_are_one_column_without_a_copy() -> None:
    rows = torch.ones(64, 8_192)
    (parcel,) = parcels([encode(row) for row in rows])
    assert parcel.bodies[0].buffers()[2].address == rows.data_ptr()


def test_what_is_no_strided_tensor_is_refused_and_what_is_no_body_of_one_told() -> None:
    for value in (WHOLE.to_sparse(), torch.nested.nested_tensor([WHOLE[0]], layout=torch.jagged)):
        with pytest.raises(ClientError, match="nested, sparse or quantized"):
            encode(value)
    for form in ("torch no_such_dtype 1", "torch Tensor 1", "torch float32 9"):
        with pytest.raises(BodyUnreadable):
            decode(form, [b"1234"])


# --- the configuration ----------------------------------------------------------------------------


def test_an_account_and_tls_travel_in_the_configuration_and_its_log_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tls = {"ca": "ca.pem", "certificate": "own.pem", "key": "no-secret-at-all"}
    section = {"topic": "experience", "name_servers": ["a:1"], "cluster": "rl", "tls": tls}
    section |= {"access_key": "rollouts", "secret_key": "no-secret-at-all"}
    conf = OmegaConf.create({}, flags={"allow_objects": True})  # as tq.init makes it
    conf = OmegaConf.merge(conf, OmegaConf.create({"backend": {"Rmq": section}}))
    opened = list[BackendSettings]()
    monkeypatch.setattr(backend, "ValueStore", lambda settings: closing(opened, settings))
    backend.initialize_rmq(conf)
    assert "no-secret" not in str(conf) and "<hidden>" in str(conf)
    again = BackendSettings.of(pickle.loads(pickle.dumps(conf)).backend.Rmq)
    assert again.discovery.lookup() == opened[0].discovery.lookup()
    with pytest.raises(ConfigError, match="name one for each job"):
        backend.initialize_rmq(OmegaConf.create({"backend": {"storage_backend": "Rmq"}}))


def closing(opened: list[BackendSettings], settings: BackendSettings) -> Any:
    """A store that notes what it was opened with, and can only be closed."""
    opened.append(settings)
    return SimpleNamespace(close=lambda: None)


# --- the page -------------------------------------------------------------------------------------


def test_the_program_of_the_page_runs() -> None:
    ((language, program),) = all_blocks("docs/transfer-queue.md")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(program, names)  # our own page
    assert language == "python" and len(names["trained"]) == 4
    assert [row.tolist() for row in names["trained"]] == names["ids"].tolist()
    assert not tq.kv_list("train").get("train")
    tq.close()


# --- kills ----------------------------------------------------------------------------------------


def arm(step: str, when: str, victim: int) -> None:
    """Once in this process."""
    method = getattr(ValueStore, step)

    def dying(self: ValueStore, *arguments: Any) -> Any:
        setattr(ValueStore, step, method)
        if when == "before":
            os.kill(victim or os.getpid(), signal.SIGKILL)
        found = method(self, *arguments)
        if when == "after":
            os.kill(victim or os.getpid(), signal.SIGKILL)
        return found

    setattr(ValueStore, step, dying)


def tensor_of(group: int) -> torch.Tensor:
    return torch.arange(SAMPLES * 1_000).reshape(SAMPLES, -1) + group


def keys_of(group: int) -> list[str]:
    return [f"{group}_{sample}" for sample in range(SAMPLES)]


@ray.remote(num_cpus=0, max_restarts=-1)
class Worker:
    """A rollout or the trainer, made again where it is killed."""

    def __init__(self, trained: str) -> None:
        tq.init()
        self.trained = Path(trained)

    def rollout(self, group: int, armed: tuple[str, str, int] | None) -> None:
        """Put a group; again where the first try was killed."""
        if armed:
            arm(*armed)
        fields = TensorDict({"ids": tensor_of(group)}, batch_size=SAMPLES)
        tags = [{"group": group}] * SAMPLES
        tq.kv_batch_put(keys=keys_of(group), partition_id="train", fields=fields, tags=tags)

    def train(self, _group: int, armed: tuple[str, str, int] | None) -> None:
        """Train on all groups that are there; what was trained is written down, as a model is."""
        if armed:
            arm(*armed)
        there = tq.kv_list("train").get("train", {})
        for group in sorted({tag["group"] for tag in there.values()}):
            done = [int(line.split()[0]) for line in self.trained.read_text().splitlines()]
            if group not in done:
                batch = tq.kv_batch_get(keys=keys_of(group), partition_id="train")
                right = all(map(torch.equal, batch["ids"].unbind(), tensor_of(group).unbind()))
                with self.trained.open("a") as file:
                    file.write(f"{group} {right}\n")
            tq.kv_clear(keys=keys_of(group), partition_id="train")


def until_done(work: Any, group: int, armed: tuple[str, str, int] | None) -> int:
    """Call it until it ends; 1 where its actor was killed meanwhile."""
    calls = [armed]

    def ended() -> bool:
        try:
            ray.get(work.remote(group, calls[-1]))
        except RayActorError:  # also while it is made again
            calls.append(None)
            return False
        return True

    eventually(ended, every_s=PAUSE_S)
    return int(len(calls) > 1)


def test_no_group_is_lost_skipped_or_trained_twice_whoever_is_killed(
    mq: rmq.Cluster, tmp_path: Path
) -> None:
    tq.init(OmegaConf.create(BACKEND))
    trained = tmp_path / "trained"
    trained.touch()
    rollout, trainer = (Worker.remote(str(trained)) for _ in range(2))  # type: ignore[attr-defined]
    killed = {"rollout": 0, "trainer": 0, "broker": 0}
    for group, (who, victim, step, when) in enumerate(KILLS):
        pid = mq.status()["broker-a/0"]["pid"] if victim == "broker" else 0
        armed = (step, when, pid)
        killed["rollout"] += until_done(rollout.rollout, group, armed if who == "rollout" else None)
        killed["trainer"] += until_done(trainer.train, group, armed if who == "trainer" else None)
        killed["broker"] += bool(pid and not Path(f"/proc/{pid}").exists())
    with judging():
        assert trained.read_text().splitlines() == [f"{group} True" for group in range(len(KILLS))]
        assert not tq.kv_list("train").get("train")
    assert killed == {"rollout": 2, "trainer": 3, "broker": 6}
    tq.close()
