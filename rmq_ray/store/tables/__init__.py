"""Small files beside the log: identity and locks, tables in JSON, journals.

Open first: ``config_files.py``.
"""
