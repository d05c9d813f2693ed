"""The controller: places, watches, restarts and promotes the actors of a cluster.

Open first: ``controller.py``, then ``elections.py`` (who decides a promotion).
"""
