"""Every value that crosses a boundary: frozen, slotted, valid once built.

Decides what a message, a queue, a topic and a route are. Open first: ``message.py``, ``ids.py``.
"""
