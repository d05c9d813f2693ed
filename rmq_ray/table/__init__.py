"""A topic as a table in an object store: zstd Parquet, with Iceberg where a catalog is given.

Decides: what of a topic lies in which file, and when a file counts. Does not decide what a topic
holds or keeps (brokers). Open first: ``rules.py``, then ``archivist.py``; users come through
``tables.py`` (``mq.tables``).
"""
