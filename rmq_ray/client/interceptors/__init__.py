"""What users and traces may do around a send or a listener's call: hooks, trace, telemetry.

Decides nothing about sending.
Open first: ``send_hooks.py``.
"""
