"""What is checked and patched in a frame before it is appended.

Decides what gets into the log. Open first: ``frame_check.py``.
"""
