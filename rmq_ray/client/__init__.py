"""The asking parties: producers and consumers, in any process. No Ray, no sockets, no disk of
brokers.

Rooms, each importing only those before it: ``instance`` (connections, routes, heartbeats),
``messages`` (what a listener gets and answers), ``interceptors``, ``outgoing``, ``sending`` (the
send engine), ``transaction``, ``producer``, ``consumer``, ``pull``, ``push``, ``pop``, ``scan``,
``admin``. Open first: ``producer/producer.py``, ``push/push_consumer.py``.
"""
