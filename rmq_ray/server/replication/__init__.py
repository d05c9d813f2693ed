"""Master and slaves: leases, the stream of log bytes, what a returning copy cuts.

Open first: ``leadership.py``, ``replication.py`` (master's side), ``replica.py`` (slave's).
"""
