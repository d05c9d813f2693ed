"""Counts by size: latencies of requests, sizes of messages, in the buckets of RocketMQ 5.

Counts beside the work: one look for the bucket and two additions. Bounded: one histogram for each
pair of request and response code, and no more than ``SERIES_MAX``.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmq_ray.model.metrics import Family, Histogram, Labels
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode

RPC_MS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
SIZE_BYTES = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
FINISH_S = (5, 60, 600, 3_600, 12 * 3_600, 24 * 3_600)
DELAY_S = (60, 600, 3_600, 12 * 3_600, 24 * 3_600, 72 * 3_600)
SERIES_MAX = 500
LONG_POLLING = frozenset(
    (
        RequestCode.PULL_MESSAGE,
        RequestCode.PULL_RECORDS,
        RequestCode.POP_RECORDS,
    )
)
"""Requests that may be answered late on purpose."""


class RpcLatencies:
    """Of one broker: from a whole request to its answer."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, bool], Histogram] = {}

    def add(self, request: int, response: int, taken_ms: float, held: bool) -> None:
        """``held``: its answer came later."""
        found = self._found.get((request, response, held))
        if found is None:
            if len(self._found) >= SERIES_MAX:
                return
            found = self._found[request, response, held] = Histogram(RPC_MS)
        found.add(taken_ms)

    def family(self) -> Family:
        """``rocketmq_rpc_latency``."""
        samples = [
            sample
            for (request, response, held), found in self._found.items()
            for sample in found.samples(_labels(request, response, held))
        ]
        words = "From a request to its answer, ms."
        return Family("rocketmq_rpc_latency", "histogram", words, tuple(samples))


def histogram(name: str, words: str, found: Iterable[tuple[Labels, Histogram]]) -> Family:
    """A family of several."""
    samples = [sample for labels, one in found for sample in one.samples(labels)]
    return Family(name, "histogram", words, tuple(samples))


def _labels(request: int, response: int, held: bool) -> Labels:
    """``result`` is what RocketMQ tells of how the answer went out."""
    return {
        "protocol_type": "remoting",
        "request_code": _name(RequestCode, request),
        "response_code": _name(ResponseCode, response),
        "is_long_polling": "true" if held and request in LONG_POLLING else "false",
        "result": "success",
    }


def _name(kind: type[RequestCode] | type[ResponseCode], code: int) -> str:
    """
    >>> _name(RequestCode, 310), _name(ResponseCode, 99_999)
    ('send_message_v2', '99999')
    """
    try:
        return kind(code).name.lower()
    except ValueError:
        return str(code)
