"""TransferQueue's SimpleStorage and ours, in turns: a program of the environment that has PyTorch
(``tools/transfer_queue.py``). Prints seconds of each round as JSON.

    python -m benchmarks.transfer_queue_job DIRECTORY ROUNDS BYTES
"""

from __future__ import annotations

import json
import sys
import time

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict

import rmq_ray as rmq
from benchmarks.settle import settle
from rmq_ray.transfer_queue import register

BACKENDS = {
    "SimpleStorage": {"num_data_storage_units": 2},
    "Rmq": {"topic": "experience", "queues": 4},
}
SAMPLES = {"64 KB": 1 << 16, "1 MB": 1 << 20, "4 MB": 4 << 20}
HOOK = {"worker_process_setup_hook": "rmq_ray.transfer_queue.register"}


def main(directory: str, rounds: int, volume: int) -> None:
    """The first round warms up and does not count."""
    ray.init(address="local", num_cpus=8, log_to_driver=False, runtime_env=HOOK)
    register()
    mq = rmq.start(store_path=directory)
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for backend, settings in BACKENDS.items():
            chosen = {"storage_backend": backend, backend: settings}
            conf = {"controller": {"polling_mode": True}, "backend": chosen}
            tq.init(OmegaConf.create(conf))
            for name, size in SAMPLES.items():
                put_s, get_s = once(size, max(1, volume // size))
                if number:
                    found.setdefault(f"put {name} {backend}", []).append(put_s)
                    found.setdefault(f"get {name} {backend}", []).append(get_s)
            tq.close()
    mq.stop()
    print(json.dumps(found))


def once(size: int, count: int) -> tuple[float, float]:
    """Seconds of a put and of a get of as many samples."""
    data = torch.randint(0, 1 << 30, (count, size // 8))
    keys = [f"sample_{number}" for number in range(count)]
    fields = TensorDict({"ids": data}, batch_size=count)
    settle()
    began = time.perf_counter()
    tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=[{}] * count)
    put_s = time.perf_counter() - began
    settle()
    began = time.perf_counter()
    got = tq.kv_batch_get(keys=keys, partition_id="train")["ids"]
    get_s = time.perf_counter() - began
    if not torch.equal(got[count - 1], data[count - 1]):
        raise RuntimeError("what came back is not what was put")
    tq.kv_clear(keys=keys, partition_id="train")
    return put_s, get_s


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
