"""How queues are divided among the members of a group.

Open first: ``even.py``, then ``strategies.py``.
"""
