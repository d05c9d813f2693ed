import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.codec.record_batch import KeyHashes
from rmq_ray.codec.text_hashes import hash_texts_at, shifts
from rmq_ray.model.hashing import java_hash
from rmq_ray.store.queue.index_service import hash_hashed_keys, hash_key

TEXTS = st.lists(
    st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=40), min_size=1, max_size=40
)


def hashed(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    data = np.frombuffer(("..." + "".join(texts) + "...").encode(), np.uint8)
    ends = 3 + np.cumsum([len(text) for text in texts])
    begins = ends - np.array([len(text) for text in texts])
    return hash_texts_at(data, begins, ends), ends - begins


@given(TEXTS)
def test_texts_in_a_buffer_have_javas_hashes(texts):
    assert hashed(texts)[0].view(np.int32).tolist() == [java_hash(text) for text in texts]


@given(TEXTS, st.sampled_from(["TopicTest", "T", "a" * 127]))
def test_a_key_whose_hash_is_known_has_the_index_hash_of_its_text(texts, topic):
    raw, lengths = hashed(texts)
    keys = KeyHashes(np.arange(len(texts)), raw, lengths)
    assert hash_hashed_keys(topic, keys).tolist() == [hash_key(topic, text) for text in texts]


def test_shifts_are_powers_of_31_up_to_the_longest_property():
    lengths = np.array([0, 1, 2, 7, 8, 1_000, 32_767])
    assert shifts(lengths).tolist() == [pow(31, length, 1 << 32) for length in lengths.tolist()]
