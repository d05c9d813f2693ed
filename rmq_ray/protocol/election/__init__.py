"""Leases, in-sync sets and promotions of masters and slaves.

Open first: ``succession.py``, ``replication.py``.
"""
