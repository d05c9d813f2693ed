"""A message on its way out, before anything is sent.

Decides what a call to ``send`` asks for: checks, placement, compression, splitting, the queue.
Sends nothing. Open first: ``send_request.py``.
"""
