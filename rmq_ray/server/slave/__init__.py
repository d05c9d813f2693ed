"""A broker that follows: the stream of its master's log, its tables, repair of broken records.

Decides what a slave asks for next and what it cuts. Open first: ``replica.py``.
"""
