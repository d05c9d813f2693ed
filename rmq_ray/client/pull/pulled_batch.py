"""What ``PullConsumer.poll`` returns: messages of one or several queues, as a list or as columns.

    batch[0], len(batch), for message in batch      MessageExt, made when asked for
    batch.to_arrow()                                pyarrow.Table, without an object per message
    batch.next_offsets                              queue -> offset to commit once the batch is done

Decides nothing: what was polled stays as it was. Messages of one queue are in the order of their
offsets. Invariant: ``to_arrow`` row i is message i.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from rmq_ray.client.messages.received import MessageExt, PulledPage
from rmq_ray.extras import named
from rmq_ray.model.ids import MessageQueue


class PageSlice(NamedTuple):
    """Records of one page."""

    page: PulledPage
    indices: Sequence[int]


class PulledBatch(Sequence[MessageExt]):
    """What ``poll`` returned: a sequence of ``MessageExt``, those of one queue in the order of
    their offsets; false when it is empty.

    ``next_offsets``: queue -> offset to commit once the batch is done. Keeps its pages in memory
    (up to 1 MiB each) as long as it lives; pickles as its messages.
    """

    def __init__(
        self,
        pieces: Sequence[PageSlice] = (),
        next_offsets: Mapping[MessageQueue, int] | None = None,
    ) -> None:
        self._pieces = tuple(pieces)
        self._messages: list[MessageExt] | None = None
        self.next_offsets: dict[MessageQueue, int] = dict(next_offsets or {})
        """Where each queue goes on behind this batch; filtered messages before that are skipped."""

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that messages come from."""
        return sorted({piece.page.queue for piece in self._pieces})

    @property
    def messages(self) -> list[MessageExt]:
        """All messages, in a list that is made once."""
        if self._messages is None:
            self._messages = [
                message for piece in self._pieces for message in piece.page.messages(piece.indices)
            ]
        return self._messages

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """``pyarrow.Table`` with the columns of ``rmq_ray.model.arrow.SCHEMA``, or some of them in
        this order.

        ``ClientError`` for a column that there is not.
        """
        with named():
            from rmq_ray.client.messages import message_columns

        return message_columns.table(self._pieces, columns)

    def __len__(self) -> int:
        return sum(len(piece.indices) for piece in self._pieces)

    @overload
    def __getitem__(self, index: int) -> MessageExt: ...
    @overload
    def __getitem__(self, index: slice) -> list[MessageExt]: ...
    def __getitem__(self, index: int | slice) -> MessageExt | list[MessageExt]:
        return self.messages[index]

    def __iter__(self) -> Iterator[MessageExt]:
        return iter(self.messages)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (list(self.messages), self.next_offsets)

    def __repr__(self) -> str:
        return f"PulledBatch({len(self)} messages of {len(self.queues)} queues)"


def _restored(
    messages: Sequence[MessageExt], next_offsets: Mapping[MessageQueue, int]
) -> PulledBatch:
    """Each unpickled message has a page of its own."""
    return PulledBatch(
        [PageSlice(page, (i,)) for page, i in (message.place for message in messages)], next_offsets
    )
