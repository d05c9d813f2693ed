"""The client classes as users call them: those of ``client`` with a cluster's name in place of a
discovery object.

``cluster`` names a cluster of this Ray cluster (None: ``actors.discovery`` tells which one is
meant); ``name_servers`` (``"host:port;host:port"`` or a list) with ``secret`` reaches one without
Ray, over TLS with ``tls`` (``rmq.Tls``), else as ``RMQ_TLS_CA`` says. ``access_key`` and
``secret_key`` make the client an account of the cluster, else as ``RMQ_ACCESS_KEY`` says
(``actors.access_keys``). Everything else is the client's: settings are those of
``ProducerConfig`` and ``ConsumerConfig``.

One module for what a program loads together: a producer starts without what consumers need. Open
first: ``producers.py``.
"""
