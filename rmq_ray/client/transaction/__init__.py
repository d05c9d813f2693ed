"""Transactions: half messages, their ends, and the checks that brokers ask for.

Decides when a transaction is committed or rolled back. Open first: ``transaction.py``.
"""
