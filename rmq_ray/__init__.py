"""A durable message queue inside a Ray cluster: Apache RocketMQ's architecture, topics as Spark
DataFrames.

    import ray, rmq_ray as rmq
    ray.init()
    mq = rmq.start(store_path="rmq-data")
    with rmq.Producer() as p:
        p.send("orders", b"body", tag="paid")

Names are loaded when they are first used: importing this package imports neither Ray nor pyspark
nor raydp, so that processes which only read or only speak the protocol start quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmq_ray.extras import load

if TYPE_CHECKING:
    from rmq_ray.actors.client_actors import ConsumerActor, ProducerActor
    from rmq_ray.actors.clients.async_producers import AsyncProducer
    from rmq_ray.actors.clients.consumers import PullConsumer, PushConsumer, SimpleConsumer
    from rmq_ray.actors.clients.producers import Producer
    from rmq_ray.actors.clients.transaction_producers import TransactionProducer
    from rmq_ray.actors.durable_queue import Queue
    from rmq_ray.actors.workers.deployment import ConsumerApp, consumer, workers
    from rmq_ray.actors.workers.fleet import Workers
    from rmq_ray.client.admin.admin_groups import Offset
    from rmq_ray.client.consumer.key_limits import KeyLimits
    from rmq_ray.client.interceptors.consume_hooks import (
        ConsumeHook,
        ConsumeHookContext,
        ConsumeStatus,
    )
    from rmq_ray.client.interceptors.message_trace import ConsumeTrace
    from rmq_ray.client.interceptors.send_hooks import SendContext
    from rmq_ray.client.interceptors.telemetry import ConsumeSpans, SendSpans
    from rmq_ray.client.messages.listener import (
        COMMIT,
        RECONSUME_LATER,
        ROLLBACK,
        SUCCESS,
        SUSPEND_CURRENT_QUEUE_A_MOMENT,
        ConsumeContext,
        ConsumeOrderlyResult,
        ConsumeResult,
        OrderlyContext,
        Reject,
    )
    from rmq_ray.client.messages.received import MessageExt
    from rmq_ray.client.outgoing.selectors import (
        SelectByMachineRoom,
        SelectByRandom,
        select_by_hash,
    )
    from rmq_ray.client.pop.receipts import ReceivedMessage
    from rmq_ray.client.producer.replying import reply
    from rmq_ray.client.pull.pulled_batch import PulledBatch
    from rmq_ray.client.pull.queue_queries import PullResult
    from rmq_ray.client.transaction.transaction import Transaction
    from rmq_ray.client.transaction.transaction_listener import (
        TransactionListener,
        TransactionSendResult,
    )
    from rmq_ray.cluster import Cluster, start, start_from
    from rmq_ray.config import (
        BrokerConfig,
        ClientAuth,
        ConsumerConfig,
        ProducerConfig,
        StoreConfig,
        Tls,
        TlsMode,
        TlsSettings,
    )
    from rmq_ray.connecting import connect
    from rmq_ray.errors import (
        AdminError,
        BodyUnreadable,
        BrokerBusy,
        ClientError,
        ClusterError,
        CommitFailed,
        ConfigError,
        ConsumeError,
        ExtraMissing,
        GroupInUse,
        GroupNotFound,
        MessageIllegal,
        MessageTooLarge,
        NotARequest,
        NotAssigned,
        NotAuthorized,
        OffsetOutOfRange,
        PromotionRefused,
        RecallFailed,
        ReceiptStale,
        RemotingError,
        RequestTimeout,
        ResultExpired,
        RmqError,
        SendError,
        SendTimeout,
        SendUnconfirmed,
        SendUnknown,
        SparkError,
        StoreError,
        TableError,
        TableExists,
        TableNotFound,
        TableStorageError,
        TaskAborted,
        TaskError,
        TaskNotEncodable,
        TaskTimedOut,
        TaskUnprocessable,
        TooFewResources,
        TooManyInFlight,
        TopicExists,
        TopicFull,
        TopicNotFound,
        TopicNotWritable,
        TransactionEnded,
        TransactionError,
        TransactionUnknown,
        ValueNotFound,
    )
    from rmq_ray.model.ids import MessageQueue
    from rmq_ray.model.message import Message, SendResult, SendStatus
    from rmq_ray.model.pulling import PullStatus
    from rmq_ray.protocol.allocation.strategies import (
        Averagely,
        AveragelyByCircle,
        ByConfig,
        ByMachineRoom,
        ConsistentHash,
        MachineRoomNearby,
        OnlyHosts,
        RoomTable,
    )
    from rmq_ray.protocol.autoscale import Autoscale
    from rmq_ray.protocol.breaker import Breaker
    from rmq_ray.protocol.filters.subscriptions import sql
    from rmq_ray.protocol.scan.scan_positions import LikeGroup
    from rmq_ray.protocol.transaction import LocalTransactionState

__version__ = "0.1.0"

__all__ = [
    "COMMIT",
    "RECONSUME_LATER",
    "ROLLBACK",
    "SUCCESS",
    "SUSPEND_CURRENT_QUEUE_A_MOMENT",
    "AdminError",
    "AsyncProducer",
    "Autoscale",
    "Averagely",
    "AveragelyByCircle",
    "BodyUnreadable",
    "Breaker",
    "BrokerBusy",
    "BrokerConfig",
    "ByConfig",
    "ByMachineRoom",
    "ClientError",
    "Cluster",
    "ClusterError",
    "CommitFailed",
    "ConfigError",
    "ConsistentHash",
    "ConsumeContext",
    "ConsumeError",
    "ConsumeHook",
    "ConsumeHookContext",
    "ConsumeOrderlyResult",
    "ConsumeResult",
    "ConsumeSpans",
    "ConsumeStatus",
    "ConsumeTrace",
    "ConsumerActor",
    "ConsumerApp",
    "ClientAuth",
    "ConsumerConfig",
    "Tls",
    "TlsMode",
    "TlsSettings",
    "ExtraMissing",
    "GroupInUse",
    "GroupNotFound",
    "KeyLimits",
    "LikeGroup",
    "LocalTransactionState",
    "MachineRoomNearby",
    "Message",
    "MessageExt",
    "MessageIllegal",
    "MessageQueue",
    "MessageTooLarge",
    "NotARequest",
    "NotAssigned",
    "NotAuthorized",
    "Offset",
    "OffsetOutOfRange",
    "OnlyHosts",
    "OrderlyContext",
    "Producer",
    "ProducerActor",
    "ProducerConfig",
    "PromotionRefused",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PulledBatch",
    "PushConsumer",
    "Queue",
    "RecallFailed",
    "ReceiptStale",
    "ReceivedMessage",
    "Reject",
    "RemotingError",
    "RequestTimeout",
    "ResultExpired",
    "RmqError",
    "RoomTable",
    "SelectByMachineRoom",
    "SelectByRandom",
    "SendContext",
    "SendError",
    "SendResult",
    "SendSpans",
    "SendStatus",
    "SendTimeout",
    "SendUnconfirmed",
    "SendUnknown",
    "SimpleConsumer",
    "SparkError",
    "StoreConfig",
    "StoreError",
    "TableError",
    "TableExists",
    "TableNotFound",
    "TableStorageError",
    "TaskAborted",
    "TaskError",
    "TaskNotEncodable",
    "TaskTimedOut",
    "TaskUnprocessable",
    "TooFewResources",
    "TooManyInFlight",
    "TopicExists",
    "TopicFull",
    "TopicNotFound",
    "TopicNotWritable",
    "Transaction",
    "TransactionEnded",
    "TransactionError",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionUnknown",
    "ValueNotFound",
    "Workers",
    "connect",
    "consumer",
    "reply",
    "select_by_hash",
    "sql",
    "start",
    "start_from",
    "workers",
]

_HOMES = {
    "rmq_ray.actors.client_actors": "ConsumerActor ProducerActor",
    "rmq_ray.actors.clients.async_producers": "AsyncProducer",
    "rmq_ray.actors.clients.consumers": "PullConsumer PushConsumer SimpleConsumer",
    "rmq_ray.actors.clients.producers": "Producer",
    "rmq_ray.actors.clients.transaction_producers": "TransactionProducer",
    "rmq_ray.actors.durable_queue": "Queue",
    "rmq_ray.actors.workers.deployment": "ConsumerApp consumer workers",
    "rmq_ray.actors.workers.fleet": "Workers",
    "rmq_ray.client.interceptors.consume_hooks": "ConsumeHook ConsumeHookContext ConsumeStatus",
    "rmq_ray.client.admin.admin_groups": "Offset",
    "rmq_ray.client.messages.listener": (
        "COMMIT ConsumeContext ConsumeOrderlyResult ConsumeResult OrderlyContext RECONSUME_LATER "
        "ROLLBACK Reject SUCCESS SUSPEND_CURRENT_QUEUE_A_MOMENT"
    ),
    "rmq_ray.client.pull.pulled_batch": "PulledBatch",
    "rmq_ray.client.pull.queue_queries": "PullResult",
    "rmq_ray.client.pop.receipts": "ReceivedMessage",
    "rmq_ray.client.messages.received": "MessageExt",
    "rmq_ray.client.producer.replying": "reply",
    "rmq_ray.client.outgoing.selectors": "SelectByMachineRoom SelectByRandom select_by_hash",
    "rmq_ray.client.interceptors.send_hooks": "SendContext",
    "rmq_ray.client.interceptors.telemetry": "ConsumeSpans SendSpans",
    "rmq_ray.client.interceptors.message_trace": "ConsumeTrace",
    "rmq_ray.client.transaction.transaction": "Transaction",
    "rmq_ray.client.transaction.transaction_listener": "TransactionListener TransactionSendResult",
    "rmq_ray.cluster": "Cluster start start_from",
    "rmq_ray.connecting": "connect",
    "rmq_ray.config": "BrokerConfig ClientAuth ConsumerConfig ProducerConfig StoreConfig Tls "
    "TlsMode TlsSettings",
    "rmq_ray.errors": (
        "AdminError BodyUnreadable BrokerBusy ClientError ClusterError CommitFailed "
        "ConfigError ConsumeError ExtraMissing GroupInUse GroupNotFound MessageIllegal "
        "MessageTooLarge NotAssigned NotARequest NotAuthorized OffsetOutOfRange "
        "PromotionRefused RecallFailed ReceiptStale RemotingError RequestTimeout "
        "ResultExpired RmqError SendError SendTimeout SendUnconfirmed SendUnknown SparkError "
        "StoreError TableError TableExists TableNotFound TableStorageError "
        "TaskAborted TaskError TaskNotEncodable TaskTimedOut TaskUnprocessable "
        "TooFewResources TooManyInFlight TopicExists TopicFull TopicNotFound TopicNotWritable "
        "TransactionEnded TransactionError TransactionUnknown ValueNotFound"
    ),
    "rmq_ray.model.ids": "MessageQueue",
    "rmq_ray.protocol.allocation.strategies": (
        "Averagely AveragelyByCircle ByConfig ByMachineRoom ConsistentHash MachineRoomNearby "
        "OnlyHosts RoomTable"
    ),
    "rmq_ray.model.message": "Message SendResult SendStatus",
    "rmq_ray.protocol.transaction": "LocalTransactionState",
    "rmq_ray.protocol.autoscale": "Autoscale",
    "rmq_ray.protocol.breaker": "Breaker",
    "rmq_ray.client.consumer.key_limits": "KeyLimits",
    "rmq_ray.protocol.scan.scan_positions": "LikeGroup",
    "rmq_ray.model.pulling": "PullStatus",
    "rmq_ray.protocol.filters.subscriptions": "sql",
}
"""Module of each public name."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name from its module, once."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'rmq_ray' has no attribute {name!r}")
    value = getattr(load(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
