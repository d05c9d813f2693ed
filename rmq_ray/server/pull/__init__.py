"""What a broker does with a pull: filter, answer, or park it until something arrives.

Open first: ``pull_handlers.py``, then ``hold_service.py`` (where a pull is parked).
"""
