"""Rules: they decide and return what should happen.

No clock, disk, loop, thread, logger or randomness; ``now_ms`` is an argument. Open first:
``retry.py`` (a decision table), ``hold_table.py`` (a contract as code).
"""
