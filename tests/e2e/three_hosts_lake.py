"""What people run on the desk: an object store that all hosts reach, and a read of a table in it by
pyarrow alone.

    python three_hosts_lake.py serve       until it is ended; /mnt/lake.ready is there once it does
    python three_hosts_lake.py read        prints {"rows", "places", "numbers"} as JSON: rows,
                                           different places in queues, different bodies
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from urllib.request import Request, urlopen

ADDRESS = "10.77.0.254:9000"
BUCKET = "lake"
LOCATION = f"s3://{BUCKET}/orders?scheme=http&endpoint_override={ADDRESS}&region=us-east-1"


def serve() -> None:
    from moto.server import ThreadedMotoServer

    host, _, port = ADDRESS.partition(":")
    ThreadedMotoServer(host, int(port), verbose=False).start()
    with urlopen(Request(f"http://{ADDRESS}/{BUCKET}", method="PUT"), timeout=20):
        Path("/mnt/lake.ready").touch()
    threading.Event().wait()


def read() -> None:
    import pyarrow.dataset as ds
    from pyarrow import fs

    store, path = fs.FileSystem.from_uri(LOCATION)
    found = [
        one.path
        for one in store.get_file_info(fs.FileSelector(path, recursive=True))
        if "/day=" in one.path and one.type == fs.FileType.File
    ]
    rows = ds.dataset(found, filesystem=store, format="parquet").to_table()
    places = rows.select(["broker", "queue_id", "queue_offset"])
    answer = {
        "rows": rows.num_rows,
        "places": places.group_by(places.column_names).aggregate([]).num_rows,
        "numbers": sorted({int(body) for body in rows["body"].to_pylist()}),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    {"serve": serve, "read": read}[sys.argv[1]]()
