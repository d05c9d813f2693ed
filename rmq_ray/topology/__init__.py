"""``rmq.toml``: which brokers, slaves and name servers a cluster has, where their stores lie, and
with which settings; and, in the file beside it, which store each broker has served from.
"""
