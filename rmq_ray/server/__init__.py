"""The serving parties: name server, broker, hold service, controller. Handlers that read top to
bottom; no Ray.
"""
