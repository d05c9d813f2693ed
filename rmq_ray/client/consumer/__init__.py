"""What consumers share: life cycle, options, assigned queues, pulling, rebalance, offsets.

Decides which queues a member has and how far each is processed. Open first:
``assigned_queue.py``, then ``puller.py``; a start and a stop are in ``consumer_lifecycle.py``.
"""
