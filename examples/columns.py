"""A table of sensor readings becomes messages by columns, and a consumer's columns again: no Python
object per message on either side.

    python -m examples.columns

``send_arrow`` takes body, key, tag and properties from columns. A row that cannot be a message is
told with its column and row before anything is sent.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import ray

import rmq_ray as rmq

TOPIC = "readings"
SENSORS, READINGS = 50, 20_000


def readings() -> pa.Table:
    """What an hour of measuring gives: one row a reading, its body as the device sent it."""
    sensor = pa.array([f"sensor-{n % SENSORS}" for n in range(READINGS)])
    celsius = pa.array([15 + n % 17 for n in range(READINGS)], pa.int16())
    hall = pc.if_else(pc.equal(pc.bit_wise_and(celsius, 1), 0), "north", "south")
    return pa.table(
        {
            "body": pc.binary_join_element_wise(sensor, celsius.cast(pa.string()), "="),
            "sensor": sensor,
            "hall": hall,
        }
    )


def main(cluster: str = "default") -> tuple[int, int, str]:
    """(rows stored, rows that came back equal, what is said about a bad row)."""
    mq = rmq.connect(cluster)
    mq.admin.create_topic(TOPIC, queues=4)
    table = readings()
    with rmq.Producer("meters", cluster=cluster) as producer:
        results = producer.send_arrow(
            TOPIC, table, body="body", key="sensor", tag="hall", properties=["hall"]
        )
        stored = sum(result.count for result in results)
        print(
            f"{stored} rows in {len(results)} frames over "
            f"{len({result.queue for result in results})} queues"
        )
        try:
            producer.send_arrow(TOPIC, pa.table({"body": ["20", None]}))
        except rmq.MessageIllegal as error:
            complaint = str(error)
    found = mq.admin.to_arrow(TOPIC, columns=["body", "keys", "tag"])
    came = pa.table(
        {"body": found["body"], "sensor": pc.list_element(found["keys"], 0), "hall": found["tag"]}
    )
    sent = pa.table(
        {"body": table["body"].cast(pa.binary()), "sensor": table["sensor"], "hall": table["hall"]}
    )
    order = [(name, "ascending") for name in sent.column_names]
    same = stored if came.sort_by(order).equals(sent.sort_by(order)) else 0
    print(f"{same} rows came back equal; a bad one: {complaint}")
    return stored, same, complaint


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
