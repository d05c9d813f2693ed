"""Consumer groups at a broker: members, offsets, locks, operations.

Open first: ``group_handlers.py``.
"""
