"""Consume queues and the index: what is built from the log, and when readers see it.

Open first: ``consume_queue.py``, ``dispatcher.py``.
"""
