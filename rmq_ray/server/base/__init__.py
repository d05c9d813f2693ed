"""What every server needs: a port, a store's keeper, timers, work off the loop.

Decides nothing about messages. Open first: ``runtime.py``, ``offload.py``.
"""
