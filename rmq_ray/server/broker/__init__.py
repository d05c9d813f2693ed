"""The broker: which parts it has, how it starts, changes its role and stops.

Open first: ``broker.py``, then ``broker_core.py``.
"""
