"""Bytes on one disk, synchronous, byte-exact Apache RocketMQ 4.9 (store-format). Front door:
``message_store``.
"""
