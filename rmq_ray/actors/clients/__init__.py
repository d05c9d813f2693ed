"""The client classes as users call them: those of ``client`` with a cluster's name in place of a
discovery object.

``cluster`` names a cluster of this Ray cluster (None: ``actors.discovery`` tells which one is
meant); ``name_servers`` (``"host:port;host:port"`` or a list) with ``secret`` reaches one without
Ray, over TLS with ``tls`` (``rmq.Tls``), else as ``RMQ_TLS_CA`` says. ``access_key`` and
``secret_key`` make the client an account of the cluster, else as ``RMQ_ACCESS_KEY`` says
(``actors.access_keys``). Everything else is the client's: settings are those of
``ProducerConfig`` and ``ConsumerConfig``.

One module for what a program loads together: a producer starts without what consumers need. Open
first: ``producers.py``. The package has the classes by name, too: pickles from before they had
modules of their own look for them here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "AsyncProducer": "async_producers",
    "Producer": "producers",
    "PullConsumer": "consumers",
    "PushConsumer": "consumers",
    "SimpleConsumer": "consumers",
    "TransactionProducer": "transaction_producers",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
