"""The commit log: segments, appends, syncs, what is known of its past.

Decides where a record lies and when it is durable. Open first: ``commit_log.py``.
"""
