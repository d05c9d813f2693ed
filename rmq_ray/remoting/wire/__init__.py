"""RocketMQ's remoting protocol in bytes: frames, codes, headers, bodies.

Decides how a request reads on the wire, not who sends it. Open first: ``frame.py``, ``codes.py``.
"""
