"""The commit log: segments, appends, syncs, epochs.

Decides where a record lies and when it is durable. Open first: ``commit_log.py``.
"""
