"""Small files beside the log: offsets, locks, pops, timers, the controller's ledger.

Open first: ``offset_file.py``.
"""
