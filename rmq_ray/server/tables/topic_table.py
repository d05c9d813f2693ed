"""The broker's topics: lookup, automatic creation, administration (protocol-behaviour 5;
store-format 11, 12).

Decides: which topics exist, with which queues and permissions, and the data version that name
servers compare. Does not decide: how the table is saved or announced; it calls ``changed`` after
each change. ``get`` is on the hot path.

Invariants: a created topic keeps its name's rules (``protocol.validators`` for users, these here
for what the broker makes); the version rises with every change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rmq_ray.clock import Clock
from rmq_ray.errors import AdminError, BrokerBusy, TopicNotFound
from rmq_ray.model.topics import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    OFFSET_MOVED_TOPIC,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    DataVersion,
    Permission,
    TopicConfig,
)

TOPICS_MAX = 50_000
CLIENT_DEFAULT_QUEUES = 4  # a producer's defaultTopicQueueNums
BENCHMARK_QUEUES = 1_024
CLUSTER_QUEUES = 16
QUEUES_MAX = 4_096  # of one topic on one broker
BYTES_MAX = 64 << 20  # of requests that wait for new topics

Resume = Callable[[Exception | None], None]


class TopicTable:
    """All topics of one broker. ``changed(topic | None)``: called in the loop after a change of one
    topic, or of many (None).
    """

    def __init__(
        self,
        clock: Clock,
        auto_create: bool = True,
        changed: Callable[[TopicConfig | None], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self.auto_create = auto_create
        self._changed = changed
        self._topics: dict[str, TopicConfig] = {}
        self._system: set[str] = set(SYSTEM_TOPICS)
        self.version = DataVersion()
        self.bounded = False
        """Whether a topic is, or was, bounded: asked for every frame."""
        self.get: Callable[[str], TopicConfig | None] = self._topics.get

    def load(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> None:
        """Replace the table by what the file says."""
        self._topics.clear()
        self._topics.update(topics)
        self.version = version
        self.bounded = any(config.bound is not None for config in topics.values())

    def add_built_in(
        self, cluster: str, broker: str, default_queues: int, delay_levels: int
    ) -> None:
        """The topics that every broker has. Existing entries stay, but the schedule topic grows to
        the number of levels.
        """
        inherit = int(Permission.READ_WRITE | Permission.INHERIT)
        built_in = [
            TopicConfig(SELF_TEST_TOPIC, 1, 1),
            TopicConfig(BENCHMARK_TOPIC, BENCHMARK_QUEUES, BENCHMARK_QUEUES),
            TopicConfig(cluster, CLUSTER_QUEUES, CLUSTER_QUEUES, inherit),
            TopicConfig(broker, 1, 1, inherit),
            TopicConfig(OFFSET_MOVED_TOPIC, 1, 1),
            TopicConfig(SCHEDULE_TOPIC, delay_levels, delay_levels),
            TopicConfig(cluster + REPLY_SUFFIX, 1, 1),
        ]
        if self.auto_create:
            built_in.append(TopicConfig(DEFAULT_TOPIC, default_queues, default_queues, inherit))
        self._system.update((cluster, broker, cluster + REPLY_SUFFIX))
        for config in built_in:
            known = self._topics.get(config.name)
            if known is None or (
                config.name == SCHEDULE_TOPIC and known.write_queues < delay_levels
            ):
                self._topics[config.name] = config
                self._bump()

    def create_by_send(
        self, topic: str, default_topic: str, queues: int, sys_flag: int = 0
    ) -> TopicConfig:
        """The topic, made from its template where it is missing. Raises ``TopicNotFound``.

        The template must exist and have INHERIT; the new topic gets min(``queues``, template's
        write queues) and the template's permission without INHERIT. TBW102 is no template when
        automatic creation is off.
        """
        known = self._topics.get(topic)
        if known is not None:
            return known
        template = self._topics.get(default_topic)
        if template is None or (default_topic == DEFAULT_TOPIC and not self.auto_create):
            raise TopicNotFound(
                f"topic {topic} does not exist and automatic creation is off or has no "
                f"template {default_topic}; create the topic",
                topic,
            )
        if not template.permission & Permission.INHERIT:
            raise TopicNotFound(
                f"topic {topic} does not exist and {default_topic} cannot be inherited; "
                f"create the topic",
                topic,
            )
        count = max(0, min(queues, template.write_queues))
        return self.put(
            TopicConfig(
                topic,
                count,
                count,
                int(template.permission & ~Permission.INHERIT),
                template.filter_type,
                sys_flag,
            )
        )

    def create_internal(self, topic: str, queues: int) -> TopicConfig:
        """A topic that the broker needs itself (retry, dead letter): made with permission 6 where
        it is missing.
        """
        return self._topics.get(topic) or self.put(TopicConfig(topic, queues, queues))

    def adopt(self, topic: str, queue_id: int) -> bool:
        """On a slave: a message of the topic has come to the queue; whether the master's settings
        of the topic are wanted. Until they are here, it has the queues that were seen. The table
        counts as old as before, so that the master's replaces it.
        """
        known = self._topics.get(topic)
        if known is None or (known.adopted and known.read_queues <= queue_id):
            known = TopicConfig(topic, queue_id + 1, queue_id + 1, adopted=True)
            self._topics[topic] = known
            self._changed(known)
        return known.adopted

    def has_adopted(self) -> bool:
        """Whether settings of a topic are wanted from the master."""
        return any(config.adopted for config in self._topics.values())

    def widen(self, config: TopicConfig, queue_id: int) -> TopicConfig:
        """For a send to a queue beyond the topic's last: an adopted topic grows by it. A slave that
        was promoted before it had the settings knows too few queues, and the producer has its
        route from the master before. Any other topic stays as it is.
        """
        if not config.adopted or queue_id >= QUEUES_MAX:
            return config
        queues = queue_id + 1
        return self.put(replace(config, read_queues=queues, write_queues=queues))

    def put(self, config: TopicConfig) -> TopicConfig:
        """Create or replace. Raises ``AdminError`` when the table is full."""
        if config.name not in self._topics and len(self._topics) >= TOPICS_MAX:
            raise AdminError(
                f"this broker has {TOPICS_MAX} topics already, {config.name} was not "
                f"created; delete unused ones",
                config.name,
            )
        if self._topics.get(config.name) != config:
            self._topics[config.name] = config
            self.bounded = self.bounded or config.bound is not None
            self._bump()
            self._changed(config)
        return config

    def delete(self, topic: str) -> bool:
        """Whether it was there."""
        if self._topics.pop(topic, None) is None:
            return False
        self._bump()
        self._changed(None)
        return True

    def announce(self) -> None:
        """Name servers are to take the table anew, though no topic changed."""
        self._bump()
        self._changed(None)

    def set_order(self, ordered: Mapping[str, str]) -> None:
        """Take over which topics are ordered, as a name server's registration answer says it
        (ORDER_TOPIC_CONFIG).
        """
        for name, config in list(self._topics.items()):
            if config.order != (name in ordered) and name not in self._system:
                self._topics[name] = replace(config, order=name in ordered)
                self._bump()

    def is_system(self, topic: str) -> bool:
        """Topics that users may neither create nor delete."""
        return topic in self._system or topic.startswith("rmq_sys_")

    def system_topics(self) -> list[str]:
        """Names of the system topics, sorted."""
        return sorted(self._system | {name for name in self._topics if name.startswith("rmq_sys_")})

    def snapshot(self) -> tuple[dict[str, TopicConfig], DataVersion]:
        """A copy that a thread may keep."""
        return dict(self._topics), self.version

    def retention(self) -> dict[str, int]:
        """Hours of each topic that has its own; a thread may ask."""
        topics = self._topics.copy().values()
        return {topic.name: topic.retention_hours for topic in topics if topic.retention_hours}

    def names(self) -> list[str]:
        """All topics."""
        return list(self._topics)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def _bump(self) -> None:
        self.version = self.version.next(self._clock.now_ms())


def is_internal(topic: str) -> bool:
    """Retry and dead-letter topics: they belong to a group, not to a user."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


class PendingTopics:
    """Topics that were just made and are not on disk, or not known to name servers yet: sends to
    them wait for both, so that no acknowledged message lies in a topic that a crash forgets or that
    a reader does not find.

    Requests for one topic go on in the order in which they came. A write that failed changes
    nothing: the next send tries it again. ``save(then)`` writes the topic table
    (``ConfigSaver.save``); ``when_known(then)``: once name servers were told of it.
    """

    def __init__(
        self,
        save: Callable[[Callable[[Exception | None], None]], None],
        when_known: Callable[[Callable[[], None]], None],
    ) -> None:
        self._save, self._when_known = save, when_known
        self._waiting: dict[str, list[tuple[int, Resume]]] = {}
        self._unsaved: set[str] = set()
        self._bytes = 0

    def created(self, topic: str) -> None:
        """``topic`` was put into the table: write it."""
        self._waiting.setdefault(topic, [])
        self._save(lambda error: self._saved(topic, error))

    def wait(self, topic: str, size: int, resume: Resume) -> None:
        """``resume(None)`` once the topic is on disk, ``resume(error)`` if it cannot be written.
        Raises ``BrokerBusy`` at the limit.
        """
        if self._bytes + size > BYTES_MAX:
            raise BrokerBusy(
                f"{self._bytes} bytes wait for topics to be created; send again later", topic
            )
        self._bytes += size
        under_way = topic in self._waiting
        self._waiting.setdefault(topic, []).append((size, resume))
        if not under_way:
            self._save(lambda error: self._saved(topic, error))

    def __contains__(self, topic: str) -> bool:
        return topic in self._waiting or topic in self._unsaved

    def __bool__(self) -> bool:
        return bool(self._waiting or self._unsaved)

    def _saved(self, topic: str, error: Exception | None) -> None:
        if error is None:
            self._unsaved.clear()  # the file holds all topics
            self._when_known(lambda: self._go_on(topic, None))
            return
        if topic in self._waiting:
            self._unsaved.add(topic)
        self._go_on(topic, error)

    def _go_on(self, topic: str, error: Exception | None) -> None:
        for size, resume in self._waiting.pop(topic, ()):
            self._bytes -= size
            resume(error)
