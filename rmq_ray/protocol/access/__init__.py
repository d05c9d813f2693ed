"""Who may do what: accounts, RocketMQ's ``plain_acl.yml``, white lists, signatures.

Decides on values alone; who keeps the accounts, and which request touches what, is decided
elsewhere. Open first: ``decision.py``, ``accounts.py``.
"""
