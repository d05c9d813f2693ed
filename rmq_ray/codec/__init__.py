"""Records, frames and files in bytes: what clients and brokers must agree on.

Decides the layout of one record, of a frame of many, how both become Arrow columns (``arrow``), and
the forms of files that both read. Only ``config_files.py`` opens any. Open first: ``record.py``
(one message, drawn byte by byte), then ``record_batch.py``.
"""
