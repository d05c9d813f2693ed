"""``rmq.toml``: which brokers, slaves and name servers a cluster has, where their stores lie, and
with which settings.
"""
