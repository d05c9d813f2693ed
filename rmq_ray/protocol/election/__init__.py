"""Leases, in-sync sets and promotions of masters and slaves.

Open first: ``promotion.py``, ``replication.py``.
"""
