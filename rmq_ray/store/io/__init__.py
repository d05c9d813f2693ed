"""Files of a store beyond the log: caches of open files, locks, JSON tables.

Open first: ``config_files.py``.
"""
