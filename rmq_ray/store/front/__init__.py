"""The store itself: its life, appends, and what of it is shown.

Open first: ``message_store.py``.
"""
