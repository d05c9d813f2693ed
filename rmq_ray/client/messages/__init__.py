"""What a consumer's program gets and gives back: received messages, listeners and their answers.

Decides how a stored record looks and what an answer means; knows no connection and no consumer.
Open first: ``received.py``, then ``listener.py``.
"""
