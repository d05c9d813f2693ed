"""The push consumer: listeners, threads, retries, order.

Decides what a listener's return value or exception means. Open first: ``push_consumer.py``, then
``consume_concurrently.py``.
"""
