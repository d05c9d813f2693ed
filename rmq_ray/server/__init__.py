"""The serving parties: name servers, brokers, hold services. Handlers that read top to bottom; no
Ray.

Folders: ``base`` and ``tables`` below; ``security`` knows who may and who did; ``send``, ``pull``,
``pop``, ``delay``, ``transaction``, ``groups`` and ``admin`` serve requests; ``replication`` leads;
``core`` wires a broker's parts and dispatches; ``slave`` follows; ``broker`` has the port and the
life of it all; ``namesrv`` is the name server. Which request goes where:
``remoting.request_table``.
"""
