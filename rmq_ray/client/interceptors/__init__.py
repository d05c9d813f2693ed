"""Hooks and checks around sends and deliveries.

Decides in which order hooks run and what they see. Open first: ``send_hooks.py``.
"""
