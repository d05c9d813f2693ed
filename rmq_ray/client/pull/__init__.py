"""The pull consumer: assign or subscribe, seek, poll, commit.

Decides what a poll returns and which position it moves. Open first: ``pull_consumer.py``.
"""
