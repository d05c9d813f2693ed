"""Checks of a store at rest (``rmq-ray store verify``).

Open first: ``inspect.py``.
"""
