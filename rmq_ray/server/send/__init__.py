"""What a broker does with a send: checks, append, acknowledgement.

Decides which status a sender sees and when. Open first: ``send_path.py`` (what every send must
pass), then ``records_handlers.py`` (frames of ours) and ``send_handlers.py`` (RocketMQ's).
"""
