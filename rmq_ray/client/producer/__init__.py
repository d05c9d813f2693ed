"""Producers as users call them, threaded and asyncio, with requests, replies and traces.

Decides the public calls; the engine beneath is ``client.sending``. Open first: ``producer.py``.
"""
