"""What all producers and consumers of one process share: connections, routes, heartbeats, timers.

Decides which broker answers for which name and when a route is asked for again. Knows no message.
Open first: ``client_instance.py``.
"""
