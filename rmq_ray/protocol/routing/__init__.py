"""Where a topic is, and which queue a message goes to.

Open first: ``route_table.py``, ``queue_selection.py``.
"""
