"""A broker's tables and their files: topics, groups, consumed offsets, delay offsets (store-format
12).

Decides: which file is written when: topics and groups at every change, offsets when a group begins
in a queue (what begins within ``FIRST_POSITIONS_MS`` of such a write waits for the next one), these
and delay offsets when asked, all at the stop. Does not decide what is in the tables.

Invariant: nothing is written before the files were loaded, so a broker that could not read them
never replaces them by empty ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_ray.codec.config_files import (
    Groups,
    Topics,
    consumer_offsets_file,
    delay_offsets_file,
    filters_file,
    groups_file,
    topics_file,
)
from rmq_ray.codec.store_files import OURS
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import RmqError
from rmq_ray.model.topics import TopicConfig
from rmq_ray.protocol.filters.filter_table import FilterTable
from rmq_ray.protocol.validators import check_group
from rmq_ray.server.base.config_saver import ConfigSaver
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.tables.broker_settings import BrokerSettings
from rmq_ray.server.tables.group_table import GroupTable
from rmq_ray.server.tables.offset_table import OffsetTable, Tables
from rmq_ray.server.tables.topic_table import PendingTopics, TopicTable
from rmq_ray.store.tables.lock_journal import LockJournal, LockLine
from rmq_ray.store.tables.topic_lives import Lives, TopicLives

log = logging.getLogger("rmq_ray.server")
FIRST_POSITIONS_MS = 200  # each write copies and writes the offsets of all groups


@dataclass(frozen=True, slots=True)
class LoadedTables:
    """What the files said; ``None`` where there is no file yet."""

    topics: Topics | None
    groups: Groups | None
    offsets: Tables | None
    delays: dict[int, int] | None
    filters: dict[str, Any] | None
    locks: tuple[list[LockLine], int]


class BrokerTables:
    """``on_topics()``: called in the loop after a change of topics; ``when_known(then)``: calls
    ``then`` once name servers know what changed until now.
    """

    def __init__(self, runtime: BrokerRuntime, settings: BrokerSettings) -> None:
        config, clock = runtime.config, runtime.clock
        files, offload = runtime.files, runtime.offload
        self.settings = settings
        directory = f"{config.store.path}/config"
        self._config = config
        self._identity = runtime.identity
        self.locks = LockJournal(f"{config.store.path}/{OURS}/queue_locks", files)
        self._topics_file = topics_file(files, f"{directory}/topics.json")
        self._groups_file = groups_file(files, f"{directory}/subscriptionGroup.json")
        self._offsets_file = consumer_offsets_file(files, f"{directory}/consumerOffset.json")
        self._filters_file = filters_file(files, f"{directory}/consumerFilter.json")
        self._delays_file = delay_offsets_file(files, f"{directory}/delayOffset.json")
        self.topics = TopicTable(clock, config.auto_create_topics, self._topic_changed)
        self.groups = GroupTable(
            clock, config.auto_create_groups, check_group, self._groups_changed
        )
        # a later position that is lost costs a repeat; the first one, what lies before a new one
        self.offsets = OffsetTable(clock, self._begun)
        self._first_saved_ms = -float(FIRST_POSITIONS_MS)
        self._first_wait = False
        self.filters = FilterTable()
        self._clock = clock
        self._delays: dict[int, int] = {}
        self._saved_delays: dict[int, int] = {}
        self.lives = TopicLives(config.store.path, files)
        self._topics_saver: ConfigSaver[tuple[Topics, Lives]] = ConfigSaver(
            "topics.json",
            lambda: (self.topics.snapshot(), self.lives.snapshot()),
            self._write_topics,
            offload,
        )
        self._groups_saver: ConfigSaver[Groups] = ConfigSaver(
            "subscriptionGroup.json", self.groups.snapshot, self._groups_file.save, offload
        )
        self._offsets_saver: ConfigSaver[Tables] = ConfigSaver(
            "consumerOffset.json", self.offsets.snapshot, self._offsets_file.save, offload
        )
        self._delays_saver: ConfigSaver[dict[int, int]] = ConfigSaver(
            "delayOffset.json", lambda: dict(self._delays), self._delays_file.save, offload
        )
        self._filters_saver: ConfigSaver[dict[str, Any]] = ConfigSaver(
            "consumerFilter.json", self.filters.encode, self._filters_file.save, offload
        )
        self.save_topics = self._topics_saver.save
        self.save_groups = self._groups_saver.save
        self.pending_topics = PendingTopics(self.save_topics, lambda then: self.when_known(then))
        self.loaded = False
        self.on_topics: Callable[[], None] = lambda: None
        self.when_known: Callable[[Callable[[], None]], None] = lambda then: then()

    def read(self) -> LoadedTables:
        """Read all files; in a thread. Raises ``StoreCorrupt`` when a file and its copy are
        unreadable.
        """
        topics, groups, offsets = (
            self._topics_file.load(),
            self._groups_file.load(),
            self._offsets_file.load(),
        )
        return LoadedTables(
            topics,
            groups,
            offsets,
            self._delays_file.load(),
            self._filters_file.load(),
            self.locks.load(),
        )

    def retention(self, found: LoadedTables | None) -> dict[str, int]:
        """Hours of each topic that has its own: of what was read, or None: of the tables."""
        if found is None or found.topics is None:
            return self.topics.retention()
        return {
            name: topic.retention_hours
            for name, topic in found.topics[0].items()
            if topic.retention_hours
        }

    def take_over(self, found: LoadedTables, delay_levels: int) -> dict[int, int]:
        """Fill the tables, add what every broker has; returns the delay offsets."""
        if found.topics is not None:
            self.topics.load(*found.topics)
        if found.groups is not None:
            self.groups.load(*found.groups)
        if found.offsets is not None:
            self.offsets.load(found.offsets)
        for fault in self.filters.load(found.filters or {}, self._clock.now_ms()):
            log.warning("%s", fault)
        self.filters.dirty = False
        self._delays = self._saved_delays = dict(found.delays or {})
        before = (self.topics.version, self.groups.version)
        self.topics.add_built_in(
            self._identity.cluster,
            self._identity.name,
            self._config.default_topic_queues,
            delay_levels,
        )
        self.groups.add_built_in()
        self.loaded = True
        if self.topics.version != before[0]:
            self.save_topics()
        if self.groups.version != before[1]:
            self.save_groups()
        return dict(self._delays)

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self.topics.auto_create = config.auto_create_topics
        self.groups.auto_create = config.auto_create_groups

    def versions(self) -> tuple[int, ...]:
        """Counter and time of topics, groups and settings: other ones after each change."""
        all_versions = (self.topics.version, self.groups.version, self.settings.version)
        return tuple(n for one in all_versions for n in (one.counter, one.timestamp_ms))

    def take_order(self, ordered: Mapping[str, str]) -> None:
        """Which topics are ordered, as a name server says; a slave has it from its master."""
        if self._identity.is_slave:
            return
        before = self.topics.version
        self.topics.set_order(ordered)
        if self.topics.version != before:
            self.save_topics()

    def save_offsets(self) -> None:
        """Write the consumed offsets if they changed."""
        if self.loaded and self.offsets.dirty:
            self._offsets_saver.save(self._offsets_saved)

    def save_first_positions(self) -> None:
        """Write the offsets if a group began in a queue since they were written for one last."""
        if self._first_wait:
            self._first_wait = False
            self._first_saved_ms = self._clock.monotonic_ms()
            self.save_offsets()

    def _begun(self) -> None:
        self._first_wait = True
        if self._clock.monotonic_ms() - self._first_saved_ms >= FIRST_POSITIONS_MS:
            self.save_first_positions()

    def save_filters(self) -> None:
        """Forget filters that were dead for a day, write the rest if it changed."""
        if self.loaded:
            self.filters.clean(self._clock.now_ms())
            if self.filters.dirty:
                self.filters.dirty = False
                self._filters_saver.save(self._filters_saved)

    def save_delays(self, offsets: dict[int, int]) -> None:
        """Write the delay offsets if they changed."""
        if self.loaded and offsets != self._saved_delays:
            self._delays = self._saved_delays = offsets
            self._delays_saver.save()

    def save_all(self, delays: dict[int, int]) -> list[RmqError]:
        """Write everything in the calling thread: the stop of a broker. Errors are returned, one
        file does not stop the others.
        """
        if not self.loaded:
            return []
        self._delays = delays
        errors = []
        savers = [
            self._topics_saver.save_now,
            self._groups_saver.save_now,
            self._offsets_saver.save_now,
            self._delays_saver.save_now,
        ]
        if self.filters.dirty:
            savers.append(self._filters_saver.save_now)
        for save_now in savers:
            try:
                save_now()
            except RmqError as error:
                errors.append(error)
        return errors

    def _write_topics(self, found: tuple[Topics, Lives]) -> None:
        """In a thread. Lives first: a topic that is made again has nothing of the old one."""
        topics, lives = found
        self.lives.save(lives)
        self._topics_file.save(topics)

    def _offsets_saved(self, error: Exception | None) -> None:
        if error is not None:
            self.offsets.dirty = True

    def _filters_saved(self, error: Exception | None) -> None:
        if error is not None:
            self.filters.dirty = True

    def _topic_changed(self, config: TopicConfig | None) -> None:
        if not self.loaded:
            return
        self.on_topics()
        if config is None:
            self.save_topics()
        else:
            self.pending_topics.created(config.name)

    def _groups_changed(self) -> None:
        if self.loaded:
            self.save_groups()
