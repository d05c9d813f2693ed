"""Positions and splits of bulk reads.

Open first: ``scan_positions.py``.
"""
