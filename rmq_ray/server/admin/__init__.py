"""Requests of operators and tools: topics, queries, statistics.

Open first: ``admin_handlers.py``.
"""
