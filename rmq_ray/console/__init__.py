"""`rmq-ray console`: the cluster in a browser, for people who run it.

Decides: what pages show and who may see and change it. Does not decide what is true: brokers tell
that, each asked once for a page. Open ``app`` first, then a module of ``pages``. Nothing imports
this package but the command; it needs the extra ``rmq_ray[console]``.
"""
