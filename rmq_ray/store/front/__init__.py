"""The front door of a store: append, read, stop; the same for a slave's.

Open first: ``message_store.py``.
"""
