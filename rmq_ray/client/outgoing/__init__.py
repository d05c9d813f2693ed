"""What a send is before it travels: checked requests, payloads and futures, the choice of a queue.

Decides what a call means and what goes on the wire; nothing here sends. Open first:
``send_request.py``.
"""
