"""Half messages, their ends, and asking producers about open ones.

Open first: ``transaction_service.py``.
"""
