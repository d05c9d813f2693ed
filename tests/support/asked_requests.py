"""A request of every row of the request table, about the topic ``orders`` and the group
``billing``, as small as it may be: what a walk over all requests asks.
"""

from __future__ import annotations

from dataclasses import replace

import msgpack

from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.access.signature import ACCESS_KEY, SIGNATURE, sign
from rmq_ray.remoting.request_table import Row
from rmq_ray.remoting.wire import bodies, body_json, pops, records
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.halves import End, HalvesHeader, pack_ends
from rmq_ray.remoting.wire.header import specification

FIELDS = {"topic": "orders", "b": "orders", "consumerGroup": "billing", "group": "billing"}
VALUES = {
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "brokerAddr": "127.0.0.1:1",
    "haServerAddr": "127.0.0.1:2",
    "groupName": "billing",
}
"""Of required fields that take no plain text and no 0."""
UNLIKE_HEADERS = {
    Code.UPDATE_AND_CREATE_ACL_CONFIG: {"accessKey": "gardener", "secretKey": "12345678"},
    Code.DELETE_ACL_CONFIG: {"accessKey": "gardener"},
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: {"globalWhiteAddrs": "10.9.9.9"},
    Code.GET_TOPICS_BY_CLUSTER: {"cluster": "live"},
}
"""Fields of requests that have no header class."""


def frame() -> bytes:
    """A frame of one record of ``orders``: what is read of it stands where it stands in one."""
    topic = b"orders"
    return b"".join(records.pack_send_one(bytes(88) + bytes([len(topic)]) + topic + bytes(2)))


def body_of(code: Code) -> bytes:
    queues = [MessageQueue("orders", "broker-a", 0)]
    found = {
        Code.SEND_RECORDS: frame,
        Code.PULL_RECORDS: lambda: records.pack_pull(
            records.PullRecords("billing", "orders", 0, 0, 1, 1, 0, 0, 0, 0, "TAG", "*", 0, 0)
        ),
        Code.SCAN_RECORDS: lambda: records.pack_scan(records.ScanRecords("orders", 0, 0, 1, 1, 0)),
        Code.POP_RECORDS: lambda: pops.pack_pop(pops.PopRecords("billing", "orders", 1, 1, 1)),
        Code.SETTLE_POPPED: lambda: pops.pack_settle(
            "billing", [pops.Settlement("orders", 0, 1, 0, b"\1")]
        ),
        Code.PIN_SEGMENTS: lambda: msgpack.packb(["orders", {0: 0}, 1]),
        Code.QUEUE_BOUNDS: lambda: msgpack.packb(["orders"]),
        Code.HEART_BEAT: lambda: body_json.write(
            {
                "clientID": "c",
                "producerDataSet": [],
                "consumerDataSet": [
                    {
                        "groupName": "billing",
                        "subscriptionDataSet": [{"topic": "orders", "subString": "*"}],
                    }
                ],
            }
        ),
        Code.CHECK_CLIENT_CONFIG: lambda: body_json.write(
            {"group": "billing", "subscriptionData": {"topic": "orders", "subString": "*"}}
        ),
        Code.LOCK_BATCH_MQ: lambda: bodies.encode_lock("billing", "c", queues),
        Code.UNLOCK_BATCH_MQ: lambda: bodies.encode_lock("billing", "c", queues),
        Code.SEND_MESSAGE: lambda: b"body",
        Code.SEND_MESSAGE_V2: lambda: b"body",
        Code.END_TRANSACTIONS: lambda: pack_ends("web", [End(0, 0, 0)]),
        Code.DRAIN_BROKER: lambda: msgpack.packb([True]),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: lambda: body_json.write({"groupName": "billing"}),
    }.get(code, bytes)()
    return bytes(found)


def fields_of(row: Row) -> dict[str, str]:
    """What names topic and group, and whatever else the row's header asks for."""
    if row.code is Code.SEND_HALVES:
        return FIELDS | HalvesHeader("orders", 0, "web").to_fields()
    found = FIELDS | UNLIKE_HEADERS.get(row.code, {})
    for _, wire, parse, required, _ in () if row.header is None else specification(row.header):
        if required and wire not in found:
            found[wire] = VALUES.get(wire, "x" if parse is str else "0")
    return found


def command_of(row: Row) -> Command:
    return Command(row.code, fields=fields_of(row), body=body_of(row.code))


def signed(command: Command, access_key: str, secret: str) -> Command:
    """As Apache RocketMQ's clients ask it."""
    fields = {**(command.fields or {}), ACCESS_KEY: access_key}
    signature = sign(fields, command.body, secret)
    return replace(command, fields={**fields, SIGNATURE: signature})
