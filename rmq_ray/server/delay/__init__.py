"""Delayed messages: levels and exact times.

Open first: ``delay_service.py``, ``timer_service.py``.
"""
