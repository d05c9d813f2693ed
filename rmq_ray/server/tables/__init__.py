"""Topics, groups and offsets of a broker: what is known, kept in files.

Decides when a table is saved and what a changed entry means. Open first: ``topic_table.py``.
"""
