"""Consumer functions as scaled groups of actors.

Open first: ``deployment.py``.
"""
