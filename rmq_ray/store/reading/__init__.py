"""Reading messages out of a store, and what may be read or must go.

Open first: ``reading.py``.
"""
