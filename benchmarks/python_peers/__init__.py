"""What a Python user would pick instead: Apache Kafka with confluent-kafka, NATS JetStream with
nats-py, Redis Streams with redis-py; the same work, in turns, in one run.

    python -m benchmarks.python_peers [--scale 0.1] [--report docs/benchmarks.md]

``turns.py`` first: what runs when. Then a module for each system with its ways to do each row.
"""
