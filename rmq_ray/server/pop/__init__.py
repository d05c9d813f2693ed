"""Pop consumption: messages handed out for a time, by the broker.

Open first: ``pop_handlers.py``, then ``pop_ledger.py``.
"""
