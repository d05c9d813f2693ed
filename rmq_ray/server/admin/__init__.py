"""Requests of operators and tools: topics, queries, statistics.

Open first: ``admin_handlers.py``; ``timers.py`` and ``clients.py`` are two of a broker's rooms.
"""
