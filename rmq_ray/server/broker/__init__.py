"""A broker as it lives: its port, its registration, its change of role.

Decides when it starts, follows, leads and stops. Open first: ``broker.py``; its parts are in
``server.core``.
"""
