"""What helps whoever types at a shell: a state shown again and again (``watch``), words completed
(``completion``), and the names that RocketMQ's operators know (``mqadmin``).
"""
