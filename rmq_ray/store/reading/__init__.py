"""Reading records out of a store: by queue offset, key or time, in bulk; and which of it goes when.

Open first: ``log_reader.py``.
"""
