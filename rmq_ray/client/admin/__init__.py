"""Administration by requests to brokers and name servers.

Decides nothing that a broker decides. Open first: ``admin.py``.
"""
