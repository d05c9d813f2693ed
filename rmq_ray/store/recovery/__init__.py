"""From the files of any stop to a store that can be trusted: its parts, checkpoints, recovery,
cuts.

Open first: ``restart.py``, then ``recovery.py``.
"""
