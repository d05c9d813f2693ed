"""A topic as datasets one after the other, each into a folder of Parquet files of its own. The
program dies between output and commit, and started again writes the same folder: each row is there
once.

    python -m examples.stream_datasets
"""

from __future__ import annotations

import tempfile

import pyarrow as pa
import ray

import rmq_ray as rmq
from rmq_ray import data as mqd

TOPIC, CLICKS, MORE = "page-clicks", 300, 100


def send(cluster: str, first: int, count: int) -> None:
    """Clicks with numbers."""
    with rmq.Producer("pages", cluster=cluster) as producer:
        for low in range(first, first + count, 50):
            bodies = [str(number) for number in range(low, low + 50)]
            producer.send_arrow(TOPIC, pa.table({"body": bodies}))


def counted(table: pa.Table) -> pa.Table:
    """One block: the click's number."""
    return pa.table({"click": table["body"].cast(pa.string()).cast(pa.int64())})


def to_files(cluster: str, directory: str, dies_in: int = -1) -> list[str]:
    """Everything that is there now; names of the batches. ``dies_in``: number of a batch."""
    names = []
    for batch in mqd.stream(
        TOPIC, checkpoint=f"{directory}/kept", columns=["body"], max_rows=120, cluster=cluster
    ):

        def write(dataset: ray.data.Dataset, path: str, number: int = batch.number) -> None:
            dataset.map_batches(counted, batch_format="pyarrow").write_parquet(path)
            if number == dies_in:
                raise KeyboardInterrupt

        batch.write(f"{directory}/clicks", write)
        names.append(batch.name)
    return names


def main(cluster: str = "default") -> tuple[int, int]:
    """(rows in the files, their sum)."""
    rmq.connect(cluster).admin.create_topic(TOPIC, queues=4)
    send(cluster, 0, CLICKS)
    with tempfile.TemporaryDirectory() as directory:
        try:
            to_files(cluster, directory, dies_in=1)
        except KeyboardInterrupt:
            print("died between output and commit")
        send(cluster, CLICKS, MORE)
        names = to_files(cluster, directory)
        clicks = ray.data.read_parquet(f"{directory}/clicks").to_pandas()["click"]
    print(f"{len(clicks)} clicks, sum {clicks.sum()}, {len(names)} batches after the death")
    return len(clicks), int(clicks.sum())


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
