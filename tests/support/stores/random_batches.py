"""Batches as RocketMQ's clients send them, lawful and broken, for hypothesis: messages that are all
alike, that differ, that are cut or damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[object]], object]
_KEY = "7F0000012A9F18B4AAC2"
_SHAPES = (
    "UNIQ_KEY\x01{unique}\x02WAIT\x01true",
    "KEYS\x01o-{number}\x02UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02TAGS\x01paid",
    "UNIQ_KEY\x01{unique}FD0000000000000000000000\x02TAGS\x01t{few}\x02region\x01eu\x02",
    "KEYS\x01a{number} b{few}\x02TAGS\x01{few}",
    "TAGS\x01a\x02TAGS\x01b\x02KEYS\x01k\x02UNIQ_KEY\x01{unique}",
    "region\x01日本{few}\x02UNIQ_KEY\x01{unique}",
    "TAGS\x01\x02KEYS\x01k{number}\x02\x02x",
    "no separator{few}",
    "KEYS\x01\x02",
    "",
    "\x02",
    "RMQ_FRAME\x01zz{few}\x02KEYS\x01k",
    "TIMER_OUT_MS\x0117\x02KEYS\x01k{few}",
)
_DOUBTFUL = ("a\x01b\0", "DELAY\x013\x02KEYS\x01k", "TRAN_MSG\x01true", "TIMER_DELAY_SEC\x015")
COMMON = (
    "WAIT\x01true\x02CLUSTER\x01default",
    "CLUSTER\x01default",
    "",
    "CLUSTER\x01default\x02TAGS\x01all",
    "INSTANCE_ID\x01i\x02CLUSTER\x01c",
    "CLUSTER\x01d\x02x\x01\0",
)


def batch_item(body: bytes, text: bytes, flag: int = 0) -> bytes:
    """One message of a batch."""
    return b"".join(
        (
            struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body)),
            body,
            len(text).to_bytes(2, "big"),
            text,
        )
    )


@st.composite
def batch_bodies(draw: Draw) -> bytes:
    """The body of SEND_BATCH_MESSAGE."""
    count = draw(st.sampled_from((0, 1, 15, 16, 17, 40, 90)))
    shapes = draw(st.lists(st.sampled_from(_SHAPES), min_size=1, max_size=3))
    length = draw(st.sampled_from((0, 1, 20, 100)))
    spread = draw(st.sampled_from((0, 0, 3, 50)))
    seed = draw(st.integers(0, 1 << 30))
    texts = [
        shapes[(seed >> number % 29) % len(shapes)].format(
            number=number * draw_factor(seed), few=number % 3, unique=f"{_KEY}{number:012X}"
        )
        for number in range(count)
    ]
    if texts and draw(st.integers(0, 5)) == 0:
        texts[seed % count] = draw(st.sampled_from(_DOUBTFUL))
    body = b"".join(
        batch_item(
            bytes((number + seed) % 251 for _ in range(length + (number * seed) % (spread + 1))),
            text.encode(),
            draw_factor(seed) * number - 5,
        )
        for number, text in enumerate(texts)
    )
    return _damaged(draw, body)


def draw_factor(seed: int) -> int:
    """1 for numbers of one length, more for several."""
    return 1 + seed % 2 * 37


def _damaged(draw: Draw, body: bytes) -> bytes:
    if not body:
        return body
    kind = draw(st.sampled_from(("sound", "sound", "sound", "cut", "longer", "byte", "size")))
    at = draw(st.integers(0, len(body) - 1))
    if kind == "cut":
        return body[:at]
    if kind == "longer":
        return body + body[:at]
    if kind == "byte":
        return body[:at] + bytes((draw(st.integers(0, 255)),)) + body[at + 1 :]
    if kind == "size":
        sizes = st.sampled_from((0, -1, 21, 22, 1 << 30, -(1 << 31)))
        return struct.pack(">i", draw(sizes)) + body[4:]
    return body
