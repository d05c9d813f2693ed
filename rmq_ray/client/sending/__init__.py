"""The send engine and who drives it: threads that wait, futures, tasks of an event loop.

Decides what follows an answer, a refusal or a silence, and which messages travel together. Does not
decide what a message looks like (``client.outgoing``). Open first: ``send_engine.py``.
"""
