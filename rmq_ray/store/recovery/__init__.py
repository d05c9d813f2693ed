"""From a directory to a store that can be trusted: checkpoints, recovery, truncation.

Open first: ``recovery.py``, ``restart.py``.
"""
