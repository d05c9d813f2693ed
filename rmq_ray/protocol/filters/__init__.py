"""Which messages a subscription wants: tags, SQL92, bloom filters.

Open first: ``subscriptions.py``, ``filter_sql92.py``.
"""
