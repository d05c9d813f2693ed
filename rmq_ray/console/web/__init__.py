"""The console's web application: its routes (``app``), the server that answers them (``serving``)
and the actor that holds it (``actor``).
"""
