"""What push and pull consumers share: assigned queues, pulling, rebalance, offsets.

Decides which queues this member has and how far each is processed. Open first:
``assigned_queue.py``, then ``puller.py``.
"""
