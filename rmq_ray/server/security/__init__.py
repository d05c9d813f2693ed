"""Who may do what, and who did: the check of rights before a handler runs, the limits of what a
stranger can cost, the audit log.

Decides nothing about messages; rules of rights are in ``protocol.access``. Open first:
``audit_log.py``.
"""
