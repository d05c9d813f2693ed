"""Thin Ray shells, one for each role, and the only module that waits for Ray (``gateway.py``).

Decides nothing that a party decides. ``control`` places, watches and promotes; ``workers`` scales
consumer functions. Open first: ``broker.py``, then ``control/controller.py``.
"""
