"""A log as a copy of another: what a master hands out of it, what a slave takes over and mends.

Nothing here moves bytes over a network. Open first: ``follower_store.py``, ``log_source.py``.
"""
