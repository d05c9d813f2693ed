"""Small files beside the log: identity and locks, journals, the ledger of masters.

Open first: ``store_lock.py``.
"""
