"""The simple (pop) consumer: receive for a time, settle each message alone.

Decides what a receipt allows. Open first: ``simple_consumer.py``.
"""
