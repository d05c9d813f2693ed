"""The name server: registrations and routes.

Open first: ``name_server.py``.
"""
