"""The master's side of replication, and who leads: leases, confirmed positions, what slaves get.

Open first: ``leadership.py``, ``replication.py``; the slave's side is ``server.slave``.
"""
