"""What a broker does with a send: checks, append, acknowledgement.

Decides which status a sender sees and when. Open first: ``records_handlers.py`` (frames of ours),
``send_handlers.py`` (RocketMQ's).
"""
