"""Records and frames as bytes: what is checked and patched before an append, what is found valid
again in a log.

Decides what gets into the log. Open first: ``frame_check.py``, ``log_scan.py``.
"""
