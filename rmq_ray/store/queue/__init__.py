"""Consume queues and the index: what is built from the log.

Open first: ``consume_queue.py``, ``index_file.py``.
"""
