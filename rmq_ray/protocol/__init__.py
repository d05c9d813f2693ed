"""Rules: they decide and return what should happen. No clock, disk, loop, thread, logger or
randomness; ``now_ms`` is an argument.
"""
