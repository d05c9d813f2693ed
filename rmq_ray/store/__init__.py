"""Bytes on one disk, synchronous, byte-exact Apache RocketMQ 4.9 (docs/file-format.md).

Decides where a record lies, when it is durable and visible, what a crash leaves. Does not decide
who may append. Open first: ``front/message_store.py``, then ``log/commit_log.py``.
"""
