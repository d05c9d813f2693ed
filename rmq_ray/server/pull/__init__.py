"""What a broker does with a pull: filter, answer, or park it until something arrives.

Open first: ``pull_handlers.py``, then ``parked_pulls.py`` (where a pull is parked).
"""
