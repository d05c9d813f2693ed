"""Records and frames in bytes: what clients and brokers must agree on.

Decides the layout of one record, of a frame of many, and how both become Arrow columns. Reads and
writes no file. Open first: ``record.py`` (one message, drawn byte by byte), then
``record_batch.py``.
"""
