"""A durable message queue inside a Ray cluster: Apache RocketMQ's architecture, topics as Spark DataFrames.

    import ray, rmq_ray as rmq
    ray.init()
    mq = rmq.start(store_path="rmq-data")
    with rmq.Producer() as p:
        p.send("orders", b"body", tag="paid")

Importing this package imports neither pyspark nor raydp; they belong to ``rmq_ray.spark``.
"""

from rmq_ray.actors.clients import AsyncProducer, Producer, PushConsumer
from rmq_ray.actors.consumer import ConsumerActor
from rmq_ray.actors.producer import ProducerActor
from rmq_ray.client.listener import RECONSUME_LATER, SUCCESS, ConsumeContext, ConsumeResult, Reject
from rmq_ray.client.received import MessageExt
from rmq_ray.cluster import Cluster, connect, start
from rmq_ray.config import BrokerConfig, ConsumerConfig, ProducerConfig, StoreConfig
from rmq_ray.errors import (
    AdminError,
    BrokerBusy,
    ClientError,
    ClusterError,
    ConfigError,
    ConsumeError,
    GroupNotFound,
    MessageIllegal,
    MessageTooLarge,
    NotAuthorized,
    OffsetOutOfRange,
    RemotingError,
    RmqError,
    SendError,
    SendTimeout,
    SendUnknown,
    SparkError,
    StoreError,
    TopicExists,
    TopicNotFound,
    TopicNotWritable,
    TransactionError,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendResult, SendStatus

__version__ = "0.1.0"

__all__ = [
    "RECONSUME_LATER",
    "SUCCESS",
    "AdminError",
    "AsyncProducer",
    "BrokerBusy",
    "BrokerConfig",
    "ClientError",
    "Cluster",
    "ClusterError",
    "ConfigError",
    "ConsumeContext",
    "ConsumeError",
    "ConsumeResult",
    "ConsumerConfig",
    "ConsumerActor",
    "GroupNotFound",
    "Message",
    "MessageExt",
    "MessageIllegal",
    "MessageQueue",
    "MessageTooLarge",
    "NotAuthorized",
    "OffsetOutOfRange",
    "Producer",
    "ProducerActor",
    "ProducerConfig",
    "PushConsumer",
    "Reject",
    "RemotingError",
    "RmqError",
    "SendError",
    "SendResult",
    "SendStatus",
    "SendTimeout",
    "SendUnknown",
    "SparkError",
    "StoreConfig",
    "StoreError",
    "TopicExists",
    "TopicNotFound",
    "TopicNotWritable",
    "TransactionError",
    "connect",
    "start",
]
