"""Which bodies a producer compresses, and the word that carries both flags."""

from __future__ import annotations

import os

import pytest

from rmq_ray.client.outgoing import compressing
from rmq_ray.client.outgoing.compressing import Compressor
from rmq_ray.client.outgoing.send_payload import flag_word, split_word, split_words
from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.codec.compression import CODECS, decompress, sys_flag_of
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import ConfigError

LONG = b"a long body " * 1_000


@pytest.mark.parametrize("flag", [0, 1, -1, -(1 << 31), (1 << 31) - 1])
@pytest.mark.parametrize("sys_flag", [0, 0x301, 0x101])
def test_both_flags_come_out_of_the_word_again(flag: int, sys_flag: int) -> None:
    assert split_word(flag_word(flag, sys_flag)) == (flag, sys_flag)


def test_words_of_a_frame_are_split_into_the_shortest_form() -> None:
    assert split_words(None) == split_words([0, 0]) == (None, 0)
    assert split_words([0, -7]) == ([0, -7], 0)
    assert split_words([5, flag_word(-7, 0x301), 0]) == ([5, -7, 0], [0, 0x301, 0])


def made(**settings: object) -> Compressor:
    compressor = Compressor.of(ProducerConfig(**settings))  # type: ignore[arg-type]
    assert compressor is not None
    return compressor


@pytest.mark.parametrize("codec", CODECS)
def test_a_long_body_is_compressed_and_a_short_or_dense_one_left_alone(codec: str) -> None:
    compressor = made(compression=codec)
    message = SendRequest("T", LONG, "", flag=-5)
    compressor.apply(message)
    flag, sys_flag = split_word(message.flag)
    assert (
        len(message.body) < len(LONG) / 5
        and (flag, sys_flag) == (-5, sys_flag_of(codec))
        and decompress(message.body, sys_flag, 1 << 20) == LONG
    )
    for body in (LONG[:4_095], os.urandom(5_000)):
        left = SendRequest("T", body, "", flag=3)
        compressor.apply(left)
        assert (left.body, left.flag) == (body, 3)


def test_a_batch_keeps_its_short_messages_as_they_are() -> None:
    bodies, texts, words = made(compression="zlib").frame(
        [b"short", LONG, b"other"], ["", "", ""], [1, 2, 3]
    )
    assert (
        [bodies[0], bodies[2]] == [b"short", b"other"]
        and words is not None
        and [split_word(word)[0] for word in words] == [1, 2, 3]
    )
    assert made(compression="zlib").frame([b"short"], [""], None) == ([b"short"], [""], None)


def test_a_body_that_cannot_be_compressed_is_sent_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(compressing, "compress", fail)
    message = SendRequest("T", LONG, "")
    made(compression="zstd").apply(message)
    assert message.body == LONG and message.flag == 0 and "sent as it is" in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"compression": "gzip"},
        {"compression": "zlib", "compression_level": 10},
        {"compression_level": 99},
        {"compress_over_bytes": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused_and_none_means_off(
    settings: dict[str, object],
) -> None:
    with pytest.raises(ConfigError):
        ProducerConfig(**settings)  # type: ignore[arg-type]
    assert Compressor.of(ProducerConfig()) is None
