"""The push consumer: listeners, threads, retries, order.

Decides what follows from a listener's answer. Open first: ``push_consumer.py``, then
``consume_concurrently.py``.
"""
