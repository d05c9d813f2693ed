"""Modules whose names are loaded when somebody asks for them."""

from __future__ import annotations

import pickle

import pytest

import rmq_ray as rmq
import rmq_ray.actors.clients as clients
import rmq_ray.arrays as np

CLASSES = (
    "AsyncProducer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
)


def test_arrays_have_numpys_names_and_none_that_make_another_kind_of_module() -> None:
    import numpy

    assert np.arange is numpy.arange
    for name in ("__path__", "__all__", "__wrapped__"):
        assert not hasattr(np, name), name


@pytest.mark.parametrize("name", CLASSES)
def test_what_was_pickled_when_all_clients_were_one_module_is_found(name: str) -> None:
    old = b"\x80\x02crmq_ray.actors.clients\n" + name.encode() + b"\n."
    assert pickle.loads(old) is getattr(rmq, name)


def test_a_client_that_there_never_was_is_not_found() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Reader'"):
        _ = clients.Reader
