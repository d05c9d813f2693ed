"""The send engine: frames in flight, retries, results.

Decides what follows an answer, a refusal or a silence, by ``protocol.retry``.
Open first: ``sending.py``.
"""
