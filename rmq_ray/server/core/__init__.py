"""A broker without a port: which parts it has, how they are wired, which of them serves a request.

Decides how errors become answers and how often periodic work runs; nothing about messages. Open
first: ``broker_core.py`` for the wiring, ``dispatch.py`` for what is served when; which request
goes where is in ``remoting.request_table``.
"""
