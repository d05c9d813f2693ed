"""A table in S3, by moto's server on loopback: rows, sweeps, buckets that are missing; plain, and
in Iceberg's catalogs of three kinds, SQL, REST and AWS Glue (moto's, too).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pyarrow.dataset as ds
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs
from pyiceberg.catalog import load_catalog

from rmq_ray.clock import ManualClock
from rmq_ray.errors import (
    CommitRefused,
    CommitterReplaced,
    RmqError,
    TableError,
    TableStorageError,
)
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.columns import schema_of
from rmq_ray.table.iceberg import ORPHAN_MS, IcebergTable
from rmq_ray.table.manifest import ManifestTable
from rmq_ray.table.rules import TableSpec
from rmq_ray.table.storage import Storage
from tests.support.tables.rest_catalog import RestCatalog
from tests.support.tables.table_rig import START_MS, TOPIC, MemoryTopic, expected_rows, rows_in

BUCKET = "lake"
TABLE = f"namespaces/shop/tables/{TOPIC}"
LEFT = "broker-a-0001-00000000000000000009-e1-g000001-dead.parquet"


class Guard:
    """Who may use the store. At first anybody; ``close``: keys of ``keys`` alone."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._iam = boto3.client("iam", endpoint_url=url, region_name="us-east-1")
        self._iam.create_user(UserName="archivist")
        allowed = '{"Effect": "Allow", "Action": "*", "Resource": "*"}'
        document = f'{{"Version": "2012-10-17", "Statement": [{allowed}]}}'
        self._iam.put_user_policy(UserName="archivist", PolicyName="all", PolicyDocument=document)

    def close(self, closed: bool = True) -> None:
        count = b"0" if closed else b"inf"
        url, text = f"{self._url}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        with urlopen(Request(url, count, text, method="POST"), timeout=20):
            pass

    def key(self) -> dict[str, str]:
        """A new one, as the environment has it."""
        made = self._iam.create_access_key(UserName="archivist")["AccessKey"]
        return {
            "AWS_ACCESS_KEY_ID": made["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"],
        }

    def end(self, key: dict[str, str]) -> None:
        self.close(False)
        self._iam.delete_access_key(UserName="archivist", AccessKeyId=key["AWS_ACCESS_KEY_ID"])
        self.close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """(client, options of a location)."""
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
    with urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST"), timeout=20):
        pass  # buckets outlive a server of the same process
    yield client, f"?scheme=http&endpoint_override={host}:{port}&region=us-east-1"
    server.stop()


@pytest.fixture
def guard(s3: Any) -> Iterator[Guard]:
    made = Guard(s3[0].meta.endpoint_url)
    yield made
    made.close(False)


def archivist(location: str, topic: MemoryTopic, writer: str) -> Archivist:
    spec = TableSpec(TOPIC, location).checked()
    target = ManifestTable(Storage(location), TOPIC, writer)
    return Archivist(spec, topic, target, ManualClock(START_MS))


def rows(location: str) -> list[tuple[int, int, bytes]]:
    """By pyarrow alone, as any other reader."""
    found, path = fs.FileSystem.from_uri(location)
    days = [
        one.path
        for one in found.get_file_info(fs.FileSelector(path, recursive=True))
        if "/day=" in one.path and one.type == fs.FileType.File
    ]
    return rows_in(ds.dataset(days, filesystem=found, format="parquet").to_table())


def test_rows_are_in_the_bucket_once_and_a_new_committer_goes_on(s3: Any) -> None:
    client, options = s3
    client.create_bucket(Bucket=BUCKET)
    location = f"s3://{BUCKET}/orders{options}"
    topic = MemoryTopic(2)
    for n in range(100):
        topic.send(n % 2, b"%d" % n)
    one = archivist(location, topic, "one")
    one.turn(force=True)
    assert rows(location) == expected_rows(topic)
    topic.send(0, b"more")
    left, foreign = f"orders/day=2026-01-01/{LEFT}", "orders/day=2026-01-01/report.parquet"
    for key in (left, foreign):
        client.put_object(Bucket=BUCKET, Key=key, Body=b"half")
    two = archivist(location, topic, "two")
    two.turn(force=True)
    keys = {one["Key"] for one in client.list_objects_v2(Bucket=BUCKET)["Contents"]}
    assert left not in keys, "what was written and not committed is swept"
    assert foreign in keys, "what others wrote stays"
    client.delete_object(Bucket=BUCKET, Key=foreign)
    assert rows(location) == expected_rows(topic)
    topic.send(1, b"last")
    with pytest.raises(RmqError, match="taken over"):
        one.turn(force=True)


def test_a_table_is_not_made_among_objects_of_others(s3: Any) -> None:
    client, options = s3
    missing = ManifestTable(Storage(f"s3://none/orders{options}"), TOPIC)
    missing.check_location()  # told by the first write, with what to do
    client.create_bucket(Bucket=BUCKET)
    table = ManifestTable(Storage(f"s3://{BUCKET}/orders{options}"), TOPIC)
    client.put_object(Bucket=BUCKET, Key="orders-of-others/a.parquet", Body=b"kept")
    table.check_location()
    client.put_object(Bucket=BUCKET, Key="orders/a.parquet", Body=b"kept")
    with pytest.raises(TableError, match="like a.parquet: give"):
        table.check_location()


def test_a_bucket_that_vanishes_is_told_and_caught_up_with_when_it_is_back(s3: Any) -> None:
    client, options = s3
    location = f"s3://{BUCKET}/orders{options}"
    topic = MemoryTopic(1)
    topic.send(0, b"1")
    worker = archivist(location, topic, "one")
    with pytest.raises(TableStorageError, match="create the bucket"):
        worker.turn(force=True)
    client.create_bucket(Bucket=BUCKET)
    assert worker.turn(force=True)
    assert rows(location) == expected_rows(topic)


def delete_bucket(client: Any) -> None:
    """With all that is in it."""
    for found in client.list_objects_v2(Bucket=BUCKET)["Contents"]:
        client.delete_object(Bucket=BUCKET, Key=found["Key"])
    client.delete_bucket(Bucket=BUCKET)


def test_a_bucket_that_vanishes_with_its_table_is_told_and_filled_anew_from_the_log(
    s3: Any,
) -> None:
    client, options = s3
    client.create_bucket(Bucket=BUCKET)
    location = f"s3://{BUCKET}/orders{options}"
    topic = MemoryTopic(1)
    topic.send(0, b"1")
    one = archivist(location, topic, "one")
    one.turn(force=True)
    delete_bucket(client)
    topic.send(0, b"2")
    with pytest.raises(TableStorageError, match="create the bucket"):
        one.turn(force=True)
    client.create_bucket(Bucket=BUCKET)
    with pytest.raises(CommitterReplaced, match="were deleted"):
        one.turn(force=True)
    assert archivist(location, topic, "two").turn(force=True)
    assert rows(location) == expected_rows(topic)


def test_credentials_that_end_are_told_and_with_new_ones_each_row_is_there_once(
    s3: Any, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, options = s3
    client.create_bucket(Bucket=BUCKET)
    location = f"s3://{BUCKET}/orders{options}"
    topic = MemoryTopic(2)
    keys = [guard.key(), guard.key()]

    def worker(number: int) -> Archivist:
        for name, value in keys[number].items():
            monkeypatch.setenv(name, value)
        return archivist(location, topic, str(number))

    guard.close()
    for n in range(10):
        topic.send(n % 2, b"%d" % n)
    one = worker(0)
    assert one.turn(force=True)
    topic.send(0, b"behind it")
    guard.end(keys[0])
    with pytest.raises(TableStorageError, match="AWS_ACCESS_KEY_ID.*goes on by itself"):
        one.turn(force=True)
    assert worker(1).turn(force=True)
    assert rows(location) == expected_rows(topic)


def test_secrets_of_a_location_are_not_told(s3: Any) -> None:
    _, options = s3
    with pytest.raises(TableStorageError) as told:
        archivist(f"s3://key:hidden@{BUCKET}/x{options}", MemoryTopic(1), "w").opened()
    assert "hidden" not in str(told.value)


# --- Iceberg ---


@pytest.fixture
def properties(s3: Any) -> dict[str, str]:
    """Of a catalog, about its files."""
    s3[0].create_bucket(Bucket=BUCKET)
    return {"s3.endpoint": s3[0].meta.endpoint_url, "s3.region": "us-east-1"}


@pytest.fixture
def rest(properties: dict[str, str], tmp_path: Path) -> Iterator[RestCatalog]:
    with RestCatalog(tmp_path, properties) as made:
        yield made


def spec_in(s3: Any, catalog: dict[str, str]) -> TableSpec:
    location = f"s3://{BUCKET}/orders{s3[1]}"
    return TableSpec(TOPIC, location, catalog={"name": "lake", **catalog}, namespace="shop")


@pytest.fixture(params=["sql", "rest", "glue"])
def spec(
    s3: Any, properties: dict[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> TableSpec:
    kind: str = request.param
    if kind == "rest":
        return spec_in(s3, request.getfixturevalue("rest").properties).checked()
    at = {"sql": {"uri": f"sqlite:///{tmp_path}/catalog.db"}}.get(
        kind, {"glue.endpoint": properties["s3.endpoint"], "glue.region": "us-east-1"}
    )
    return spec_in(s3, {"type": kind, **at, **properties}).checked()


def committer(spec: TableSpec, topic: MemoryTopic, writer: str) -> Archivist:
    """Of an Iceberg table, with a catalog of its own, as each process has one."""
    table = IcebergTable(spec, schema_of(spec.columns), writer)
    return Archivist(spec, topic, table, ManualClock(START_MS))


def catalog_of(spec: TableSpec) -> Any:
    properties = dict(spec.catalog)
    return load_catalog(properties.pop("name"), **properties)


def by_pyiceberg(spec: TableSpec) -> list[tuple[int, int, bytes]]:
    """As pyiceberg reads them, which knows the catalog's properties and nothing of us."""
    return rows_in(catalog_of(spec).load_table(("shop", TOPIC)).scan().to_arrow())


def test_rows_of_an_iceberg_table_are_there_once_and_a_new_committer_goes_on(
    spec: TableSpec, s3: Any
) -> None:
    topic = MemoryTopic(2)
    for n in range(100):
        topic.send(n % 2, b"%d" % n)
    one = committer(spec, topic, "one")
    assert one.turn(force=True) and by_pyiceberg(spec) == expected_rows(topic)
    topic.send(0, b"more")
    two = committer(spec, topic, "two")
    assert two.turn(force=True) and by_pyiceberg(spec) == expected_rows(topic)
    topic.send(1, b"last")
    with pytest.raises(CommitRefused):
        one.turn(force=True)
    assert one.turn(force=True) and by_pyiceberg(spec) == expected_rows(topic), (
        "it read the table again"
    )
    client, left = s3[0], f"orders/data/day=2023-11-14/{LEFT}"
    client.put_object(Bucket=BUCKET, Key=left, Body=b"half")
    day_after = max(found["LastModified"] for found in listed(client)).timestamp() * 1000
    table = IcebergTable(spec, schema_of({}), "three")
    assert table.sweep(int(day_after) + ORPHAN_MS + 1_000) == 3, "and what was refused"
    assert left not in {found["Key"] for found in listed(client)}
    assert by_pyiceberg(spec) == expected_rows(topic)


@pytest.mark.parametrize("status", [409, 500, 502, 503, 504])
def test_a_commit_whose_answer_was_lost_is_looked_up_and_not_repeated(
    s3: Any, rest: RestCatalog, status: int
) -> None:
    spec, topic = spec_in(s3, rest.properties), MemoryTopic(2)
    topic.send(0, b"before")
    one = committer(spec, topic, "one")
    one.turn(force=True)
    for n in range(10):
        topic.send(n % 2, b"%d" % n)
    rest.lose_answers.append(status)  # 409: the gateway asked again by itself
    assert one.turn(force=True)
    assert by_pyiceberg(spec) == expected_rows(topic)
    assert rest.requests.count(f"POST /v1/{TABLE}") == 2 and not rest.lose_answers
    topic.send(0, b"behind")
    assert one.turn(force=True) and by_pyiceberg(spec) == expected_rows(topic)


def test_a_catalog_that_is_away_is_told_and_caught_up_with(s3: Any, rest: RestCatalog) -> None:
    spec, topic = spec_in(s3, rest.properties), MemoryTopic(1)
    topic.send(0, b"1")
    one = committer(spec, topic, "one")
    one.turn(force=True)
    topic.send(0, b"2")
    rest.away = 503
    with pytest.raises(TableStorageError, match="check that it answers"):
        one.turn(force=True)
    rest.away = 0
    one.turn(force=True)
    assert by_pyiceberg(spec) == expected_rows(topic)


def test_an_iceberg_table_whose_bucket_vanished_is_told_and_begins_anew_once_the_catalog_forgets_it(
    spec: TableSpec, s3: Any
) -> None:
    client, topic = s3[0], MemoryTopic(1)
    topic.send(0, b"1")
    one = committer(spec, topic, "one")
    one.turn(force=True)
    delete_bucket(client)
    topic.send(0, b"2")
    with pytest.raises(TableStorageError, match="create the bucket"):
        one.turn(force=True)
    client.create_bucket(Bucket=BUCKET)
    remedy = "check that it answers" if spec.catalog["type"] == "rest" else "drop the table in the"
    with pytest.raises(TableStorageError, match=remedy):
        one.turn(force=True)
    catalog_of(spec).drop_table(("shop", TOPIC))
    with pytest.raises(CommitterReplaced, match="begins anew"):
        one.turn(force=True)
    assert committer(spec, topic, "two").turn(force=True)
    assert by_pyiceberg(spec) == expected_rows(topic)


def test_credentials_that_end_are_told_of_an_iceberg_table_too(
    spec: TableSpec, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, topic = [guard.key(), guard.key()], MemoryTopic(1)

    def worker(number: int) -> Archivist:
        for name, value in keys[number].items():
            monkeypatch.setenv(name, value)
        return committer(spec, topic, str(number))

    guard.close()
    topic.send(0, b"1")
    one = worker(0)
    one.turn(force=True)
    topic.send(0, b"2")
    guard.end(keys[0])
    with pytest.raises(TableStorageError, match="AWS_ACCESS_KEY_ID.*goes on by itself"):
        one.turn(force=True)
    assert worker(1).turn(force=True)
    assert by_pyiceberg(spec) == expected_rows(topic)


def test_a_drop_of_an_iceberg_table_leaves_no_file_of_it(spec: TableSpec, s3: Any) -> None:
    topic = MemoryTopic(1)
    topic.send(0, b"1")
    committer(spec, topic, "one").turn(force=True)
    assert listed(s3[0])
    assert IcebergTable(spec, schema_of({}), "two").drop() == 0
    assert listed(s3[0]) == []


def listed(client: Any) -> list[dict[str, Any]]:
    """Without the empty objects that pyarrow leaves where a folder's last file was deleted."""
    found = client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return [one for one in found if not one["Key"].endswith("/")]
