"""Bulk reads: from a topic and two positions to Arrow batches.

Decides which part of which log is read where. Open first: ``scan_plan.py``.
"""
