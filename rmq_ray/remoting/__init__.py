"""RocketMQ's wire protocol: the table of requests, connections, ports; ``wire`` has the bytes.

Turns frames into values and back, owns sockets, decides nothing about messages. Open first:
``request_table.py``, ``wire/frame.py``, ``connection.py`` (asks), ``peer.py`` (is asked).
"""
