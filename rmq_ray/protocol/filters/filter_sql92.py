"""SQL92 filters: whether a message's properties satisfy a condition (protocol-behaviour 21).

    compile_filter("amount > 100 AND region IN ('eu','us')").matches(
        b"amount\\x01250\\x02region\\x01eu"
    )  ->  True

Decides: the front of lexer, parser and compiler, and what is remembered of verdicts. Does not
decide where a filter is evaluated: the broker does when it reads (``server.pull.pull_filters``),
the client checks the expression only.

Our producers begin a frame with a mark, which no filter sees, and end a property string with a
unique key. What stands between them is often the same in many messages; verdicts are remembered by
that, unless the condition asks for the unique key itself. The memory is bounded; forgetting costs
an evaluation. Any thread.
"""

from __future__ import annotations

from collections import OrderedDict

from rmq_ray.errors import SubscriptionInvalid
from rmq_ray.model.message import FRAME, UNIQUE_KEY
from rmq_ray.protocol.filters.sql92_compiler import compile_condition
from rmq_ray.protocol.filters.sql92_numbers import NotComparable
from rmq_ray.protocol.filters.sql92_parser import parse

VERDICTS_MAX = 512  # of a filter; a broker may have thousands of filters
HEAD_BYTES_MAX = 128
FILTERS_MAX = 100
_TAIL_NAME = b"\x02" + UNIQUE_KEY.encode() + b"\x01"
_TAIL_BYTES = len(_TAIL_NAME) + 32
_MARK = FRAME.encode() + b"\x01"
_MARK_BYTES = len(_MARK)


class SqlFilter:
    """A compiled condition. ``expression``: as written."""

    __slots__ = ("_evaluate", "_remember", "_verdicts", "expression")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._evaluate = compile_condition(parse(expression))
        self._remember = UNIQUE_KEY not in expression
        self._verdicts: dict[bytes, bool] = {}

    def matches(self, properties: bytes) -> bool:
        """Whether a message with this property string (UTF-8, as stored) passes: unknown and failed
        evaluations do not.
        """
        if properties[:_MARK_BYTES] == _MARK:
            properties = properties.partition(b"\x02")[2]
        if not self._remember:
            return self._decide(properties)
        head = (
            properties[:-_TAIL_BYTES] if properties[-_TAIL_BYTES:-32] == _TAIL_NAME else properties
        )
        verdict = self._verdicts.get(head)
        if verdict is None:
            verdict = self._decide(head)
            if len(head) <= HEAD_BYTES_MAX:
                if len(self._verdicts) >= VERDICTS_MAX:
                    self._verdicts = {}
                self._verdicts[head] = verdict
        return verdict

    def _decide(self, properties: bytes) -> bool:
        try:
            return self._evaluate(properties) is True
        except NotComparable:
            return False


def compile_filter(expression: str) -> SqlFilter:
    """The filter of an expression. ``SubscriptionInvalid`` with the position (``args[2]``, from 0)
    of what is wrong.
    """
    if not isinstance(expression, str):
        raise SubscriptionInvalid(
            f"an SQL filter is a text, not {expression!r:.80}", repr(expression)[:80], 0
        )
    return SqlFilter(expression)


class FilterCache:
    """The last ``FILTERS_MAX`` expressions, refused ones included: pulls with an inline expression
    repeat it. One thread.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[str, SqlFilter | SubscriptionInvalid] = OrderedDict()

    def get(self, expression: str) -> SqlFilter:
        """Compiled now or before; raises as ``compile_filter``."""
        found = self._found.get(expression)
        if found is None:
            try:
                found = compile_filter(expression)
            except SubscriptionInvalid as error:
                found = error
            self._found[expression] = found
            if len(self._found) > FILTERS_MAX:
                self._found.popitem(last=False)
        else:
            self._found.move_to_end(expression)
        if isinstance(found, SubscriptionInvalid):
            raise found.with_traceback(None)
        return found
