"""The error tree of rmq_ray: every failure a caller can meet has one class here, and every class
says whose fault it was.

    RmqError
    ├── ConfigError                      a setting or topology file is wrong (caller)
    │   ├── AccessRulesInvalid           accounts or rights with faults: the old ones stay (caller)
    │   └── CredentialsInvalid           an access key without its secret, or a faulty file (caller)
    ├── ExtraMissing                     a package of an extra is not installed (caller)
    ├── ClientError                      misuse of a client: wrong state, bad name, closed (caller)
    │   ├── NoNameServer                 nobody told where the cluster is (caller)
    │   └── NotARequest                  a reply to a message that asks for none (caller)
    ├── SendError                        a send that is definitely not stored
    │   ├── SendUnknown                  may be stored: connection lost behind the frame (network)
    │   │   ├── SendTimeout              may be stored: no answer within the time-out (network)
    │   │   └── SendUnconfirmed          stored, less safely than asked for: no slave in sync (peer)
    │   ├── MessageTooLarge, MessageIllegal (caller)
    │   ├── BrokerBusy                   refused before anything was written; try again (peer)
    │   │   └── TopicFull                a bounded topic holds as much as it may (caller)
    │   ├── BrokerUnreachable            no connection: nothing was sent (network)
    │   ├── TopicNotFound, TopicNotWritable (caller)
    │   │   └── NoRoute                  no name server knows the topic (caller)
    │   ├── SendNotAuthorized            also a NotAuthorized: the account may not (caller)
    │   └── DuplicateMismatch            a sequence number was used again with other bytes (caller)
    ├── ConsumeError
    │   ├── OffsetOutOfRange, NotAssigned, CommitFailed, SubscriptionInvalid, SubscriptionStale
    │   ├── BodyUnreadable, ValueNotFound
    │   └── GroupInUse, ReceiptStale, TooManyInFlight: of groups that pop
    ├── TransactionError                 a half message or its end was refused
    │   ├── TransactionUnknown           nobody acknowledged the end; the broker will ask (network)
    │   └── TransactionEnded             it has ended otherwise before (peer)
    ├── RecallFailed                     the message was due already, or does not wait (caller)
    ├── AdminError
    │   └── TopicExists, GroupNotFound, NotAuthorized
    ├── RemotingError                    one connection, not the whole request
    │   ├── ConnectFailed                nothing was sent: always safe to repeat (network)
    │   ├── ConnectionLost               the request may have been processed (network)
    │   ├── RequestTimeout               no answer in time; may have been processed (network)
    │   ├── TooManyRequests              this side's limit on unanswered requests (caller)
    │   ├── FrameTooLarge                more than 16 MiB to send: nothing was sent (caller)
    │   ├── MalformedFrame               the peer broke the protocol; it is cut off (peer)
    │   ├── HandshakeFailed              wrong secret, cluster or role (peer)
    │   │   └── TlsFailed                a certificate, or an end without TLS (peer)
    │   └── ResponseError                the peer answered with a failure code
    │       └── RouteNotAuthorized       also a NotAuthorized: the account may not (caller)
    ├── StoreError                       the disk's side
    │   ├── StoreInUse, StoreMissing, StoreForeign, StoreUnwritable
    │   ├── StoreCorrupt                 bytes on disk contradict the format
    │   ├── LogDiverged                  a copy cannot go on: other log, bytes or epoch
    │   ├── StoreFull                    no room; reads go on
    │   ├── StoreFailed                  a write or fsync failed: no acknowledgement until re-read
    │   │   ├── StoreUnreadable          a read failed: that record cannot be had now
    │   │   └── AppendUnknown            of this very message: it may be found when the disk is read
    │   └── StoreNotReady                recovery is still running; try again
    │       └── RecordAwaited            a slave is asked for a broken record; try again
    ├── MasterReplaced                   a name server knows a master of a later epoch (peer)
    ├── ClusterError                     Ray's side: actor missing, not started, wrong placement
    │   ├── PromotionRefused             that replica cannot be made master now (caller)
    │   └── TooFewResources              so many actors fit on no nodes of this Ray cluster (caller)
    ├── TableError                       a topic's table: what was asked for cannot be (caller)
    │   ├── TableNotFound                the topic has no table (caller)
    │   ├── TableExists                  it has one already, made otherwise (caller)
    │   ├── TableStorageError            its files or catalog cannot be reached now (peer)
    │   ├── CommitRefused                another commit came first: the table is read again (peer)
    │   └── CommitterReplaced            another committer has taken the table over (peer)
    ├── SparkError                       Java, pyspark or raydp missing or wrong
    └── TaskError                        a task of Ray Serve
        ├── TaskNotEncodable             arguments or a result have no form (caller)
        ├── TaskUnprocessable            no handler of that name, or arguments unreadable (caller)
        ├── TaskTimedOut                 its handler ran longer than it may (caller)
        ├── TaskAborted                  its handler ended its thread or its process (caller)
        └── ResultExpired                what became of it is not kept any more (caller)

Arguments are positional and plain values (Ray hands exceptions on by pickling ``args``).
``retriable`` says whether the same call may succeed later without the caller changing anything;
``code`` is RocketMQ's response code that stands for the class on the wire.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RmqError(Exception):
    """Base of all errors. ``args[0]`` says what was wrong and what to do; further args are plain
    values.
    """

    code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    def __init__(self, message: str = "", *values: object) -> None:
        super().__init__(message, *values)

    @property
    def message(self) -> str:
        """What was wrong, in words."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return self.message


class ConfigError(RmqError):
    """A setting, a name or a topology file is wrong; the message names the value and the remedy."""


class AccessRulesInvalid(ConfigError):
    """Accounts, rights or white lists have faults; nothing of them is used (args[1] = where they
    stand, args[2] = tuple of all faults).
    """

    @property
    def faults(self) -> tuple[str, ...]:
        """Each fault in words."""
        found: Any = self.args[2] if len(self.args) > 2 else ()
        return tuple(found)


class CredentialsInvalid(ConfigError):
    """An account's access key and secret key are not both there, or cannot be ones; the message
    says where they were looked for.
    """


class ExtraMissing(RmqError, ImportError):
    """A package that an extra of this one brings is not installed; the message says how it comes
    and what works without (args[1] = package, args[2] = extra). Also Python's ``ImportError``.
    """


class ClientError(RmqError):
    """A client object was used wrongly: not started, closed, forked, or a name that RocketMQ
    refuses.
    """

    code = 10003


class NoNameServer(ClientError):
    """No name server address is known, so nothing can be found at all."""

    code = 10004


class NotARequest(ClientError):
    """A reply to a message that was sent without ``request``: nobody waits for it."""

    code = 10007


class SendError(RmqError):
    """A send that is definitely not stored."""


class SendUnknown(SendError):
    """The send may be stored, at most once on one broker name however often it was retried
    there.
    """

    code = 10002
    retriable = True


class SendTimeout(SendUnknown):
    """No answer within the send's overall time-out; the message may be stored."""

    code = 10002


class SendUnconfirmed(SendUnknown):
    """The broker has the message, but not as safely as its mode demands, and consumers may not get
    it (args[2] = what of the same call is stored safely, as of any ``SendError`` of a batch or
    table; args[3] = the results).
    """

    @property
    def results(self) -> tuple[Any, ...]:
        """``SendResult``s of what the broker has, with their ``status``: those that were confirmed
        first.
        """
        return tuple(self.args[3]) if len(self.args) > 3 else ()

    @property
    def result(self) -> Any:
        """The result that was not confirmed; None where there is none."""
        return self.results[-1] if self.results else None


class MessageTooLarge(SendError):
    """Body, properties or record exceed the limit (args[1] = size, args[2] = limit, both bytes)."""

    code = 13


class MessageIllegal(SendError):
    """The message breaks a rule of the format: empty body, reserved property, bad record bytes."""

    code = 13


class BrokerBusy(SendError):
    """The broker refused before writing anything (flow control, page cache busy); the same send may
    be repeated.
    """

    code = 2
    retriable = True


class TopicFull(BrokerBusy):
    """The topic is bounded, and as much as it may hold waits for its consumers: nothing was stored
    (args[1] = topic). The send has waited for its whole time-out.
    """

    code = 2


class BrokerUnreachable(SendError):
    """No broker of the topic could be connected to within the time-out: nothing was sent (args[1] =
    topic).
    """

    code = 10001
    retriable = True


class TopicNotFound(SendError):
    """No route to the topic and auto-creation is off or impossible (args[1] = topic)."""

    code = 17


class NoRoute(TopicNotFound):
    """The client found no route: neither the topic nor a template for new topics is known to a name
    server (args[1] = topic).
    """

    code = 10005


class TopicNotWritable(SendError):
    """The topic's or broker's permission forbids writing (args[1] = topic)."""

    code = 16


class DuplicateMismatch(SendError):
    """(producer id, sequence) came again with different bytes: the frame was refused, the first one
    stands.
    """

    code = 13


class ConsumeError(RmqError):
    """Base of what consumers meet."""


class OffsetOutOfRange(ConsumeError):
    """The offset lies outside the queue (args[1] = asked, args[2] = minimum, args[3] = maximum, all
    queue offsets).
    """

    code = 21


class NotAssigned(ConsumeError):
    """The consumer does not hold this queue, or has no queues at all (args[1] = queue or group)."""


class CommitFailed(ConsumeError):
    """A broker did not take committed offsets (args[1:] = those queues): they are in memory and
    told again later.
    """

    retriable = True


class SubscriptionInvalid(ConsumeError):
    """The subscription expression cannot be parsed or contradicts the group's."""

    code = 23


class SubscriptionStale(ConsumeError):
    """The broker knows an older or no subscription of this group; heartbeat and pull again."""

    code = 25
    retriable = True


class BodyUnreadable(ConsumeError):
    """A compressed body cannot be restored: wrong bytes, cut short, an unknown codec, or larger
    than the reader allows.
    """


class ValueNotFound(ConsumeError):
    """A value of TransferQueue is not there any more, or never was: it was cleared, or retention
    took it (args[1] = its key).
    """


class GroupInUse(ConsumeError):
    """Others consume as this group in another way (push or pull beside simple consumers), or with
    another subscription; the message names them.
    """

    code = 20030


class ReceiptStale(ConsumeError):
    """A popped message's time was over before it was settled: it was or will be given to somebody
    else (args[1] = how many messages).
    """

    code = 10007


class TooManyInFlight(ConsumeError):
    """As many messages of the group are out at workers as may be: acknowledge some, or wait until
    their time is over.
    """

    code = 215
    retriable = True


class TransactionError(RmqError):
    """Base of transactional failures: a half message is not safely stored, or its end was refused
    (args[1] = transaction id).
    """


class TransactionUnknown(TransactionError):
    """No broker acknowledged the commit or rollback: it may have happened. The broker asks the
    producer group, which knows the decision.
    """

    code = 10002


class TransactionEnded(TransactionError):
    """The transaction had ended otherwise: rolled back by another member's answer, or given up
    after the last check.
    """

    code = 4


class RecallFailed(RmqError):
    """The message cannot be taken back: it was due already, or does not wait at that broker
    (args[1] = message id).
    """

    code = 22


class AdminError(RmqError):
    """Base of what administration calls meet."""


class TopicExists(AdminError):
    """The topic exists already with other settings (args[1] = topic)."""

    code = 18


class GroupNotFound(AdminError):
    """The consumer group does not exist (args[1] = group)."""

    code = 26


class NotAuthorized(AdminError):
    """The peer refused the credentials or the permission for this request."""

    code = 16


class SendNotAuthorized(SendError, NotAuthorized):
    """The account has not the right to send there, or its keys are not known: nothing was stored
    (args[1] = topic).
    """

    code = 16


class RemotingError(RmqError):
    """Base of what one connection meets; args[1], where present, is the peer's address
    ``host:port``.
    """


class ConnectFailed(RemotingError):
    """Connecting failed: nothing was sent, repeating is always safe."""

    code = 10001
    retriable = True


class ConnectionLost(RemotingError):
    """The connection broke while a request was unanswered: it may have been processed."""

    code = 10002
    retriable = True


class RequestTimeout(RemotingError):
    """No answer in time: the request may have been processed."""

    code = 10006
    retriable = True


class TooManyRequests(RemotingError):
    """This side's limit on unanswered requests or queued bytes is reached: nothing was sent."""

    code = 2
    retriable = True


class FrameTooLarge(RemotingError):
    """A frame to be sent exceeds the protocol's limit (args[1] = size, args[2] = limit, both
    bytes): nothing was sent.
    """

    code = 13


class MalformedFrame(RemotingError):
    """The peer broke the protocol (args[1] = address); its connection is closed, nothing else is
    touched.
    """


class HandshakeFailed(RemotingError):
    """Wrong secret, cluster or role, or a foreign client on a closed port."""

    code = 16


class TlsFailed(HandshakeFailed):
    """No TLS came about: a certificate that has expired, names another host or comes of an unknown
    CA, a client certificate that is missing, or an end that does not speak TLS. Nothing was sent.
    """


class ResponseError(RemotingError):
    """The peer answered with a failure code (args[1] = response code); the message is its
    remark.
    """

    @property
    def response_code(self) -> int:
        """RocketMQ's code; 1 where the peer sent none."""
        return int(str(self.args[1])) if len(self.args) > 1 else 1


class RouteNotAuthorized(ResponseError, NotAuthorized):
    """A name server does not tell the account where a topic is, which it may neither send to nor
    read.
    """

    code = 16


class StoreError(RmqError):
    """Base of the disk's side; args[1], where present, is the path."""

    code = 14


class StoreInUse(StoreError):
    """Another process holds the store's locks."""


class StoreMissing(StoreError):
    """An expected store is not there: never replaced by a new log silently."""


class StoreForeign(StoreError):
    """The directory holds the store of another broker, or files that are not ours."""


class StoreUnwritable(StoreError):
    """The directory cannot be written."""


class StoreCorrupt(StoreError):
    """Bytes on disk contradict the format (args[1] = path, args[2] = position)."""


class LogDiverged(StoreError):
    """A slave's log is no prefix of its master's: another log, other bytes, or an epoch that its
    master does not have. Nothing is written.
    """

    code = 20040


class StoreFull(StoreError):
    """No room on the disk: writes are refused, reads go on, and it recovers by itself."""

    retriable = True


class StoreFailed(StoreError):
    """A write or fsync failed: nothing more is acknowledged from this log until the disk was read
    again.
    """

    retriable = True


class StoreUnreadable(StoreFailed):
    """A file cannot be opened or read (a bad sector, too many open files): only what lies there
    cannot be had, nothing was lost.
    """


class AppendUnknown(StoreFailed):
    """The disk failed in the middle of this append: the message may be in the log when the disk was
    read again, or not.
    """


class StoreNotReady(StoreError):
    """Recovery is still running; the same request succeeds once it is done."""

    retriable = True


class RecordAwaited(StoreNotReady):
    """The record here is broken on this disk and a slave is asked for its copy: it, or what lies
    behind it, is there in a moment (args[1] = queue offset).
    """


class MasterReplaced(RmqError):
    """A name server knows a master of a later epoch under this name: the one that registers was
    replaced and is not told to clients.
    """

    code = 20041


class ClusterError(RmqError):
    """Ray's side: an actor is missing, was never started, or is placed where its store is not."""


class PromotionRefused(ClusterError):
    """That replica cannot be made master now: it does not run, or may lack acknowledged messages
    (args[1] = broker name).
    """


class TooFewResources(ClusterError):
    """The nodes of the Ray cluster could not run all these actors even if nothing else ran there;
    none was created (args[1] = consumer group).
    """


class TableError(RmqError):
    """What was asked of a topic's table cannot be done, or its manifest cannot be read."""


class TableNotFound(TableError):
    """The topic has no table (args[1] = topic)."""


class TableExists(TableError):
    """The topic has a table already, with other settings (args[1] = topic)."""


class TableStorageError(TableError):
    """The table's files or its catalog cannot be reached, read or written now; the archivist goes
    on by itself once that is mended (args[1] = location).
    """

    retriable = True


class CommitRefused(TableError):
    """Another commit to the table came first; the archivist reads it again and goes on behind."""

    retriable = True


class CommitterReplaced(TableError):
    """A newer start of the archivist has taken the table over: this one gives up."""


class SparkError(RmqError):
    """Java, pyspark or raydp is missing or does not fit; the message names the remedy."""


class TaskError(RmqError):
    """Base of what becomes of tasks (``rmq_ray.serve``); args[1], where present, is the task's id
    or name.
    """


class TaskNotEncodable(TaskError, ClientError):
    """Arguments or a result hold a value that has no form without pickle: nothing was sent
    (args[1] = the task's name).
    """


class TaskUnprocessable(TaskError):
    """No handler of that name is registered, or its arguments cannot be read; the task is in the
    queue of unprocessable ones.
    """


class TaskTimedOut(TaskError):
    """The handler ran longer than ``task_timeout_s``: it counts as failed, what it still returns is
    dropped.
    """


class TaskAborted(TaskError):
    """The handler called ``sys.exit``, or workers died with the task more often than they may."""


class ResultExpired(TaskError):
    """The task ended, and its result is older than results are kept, or its status is gone (args[1]
    = the task's id).
    """
