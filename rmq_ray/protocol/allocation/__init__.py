"""How queues are divided among the members of a group.

Open first: ``rule.py``, then ``strategies.py``.
"""
