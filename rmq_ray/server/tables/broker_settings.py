"""What was changed of a broker's settings while it ran, and its limits: kept beside the log, and in
force again at the next start.

    topology file ──> base ─┐
    rmq_ray/settings.json ──┴─> config: in effect now; who follows is told of each change
                            └─> limits of topics, groups and accounts

A slave has its master's changes, so that they hold whoever is master. Decides when the file is
written and who is told. Does not decide what may be changed (``protocol.live_settings``).

Invariants: a change is taken whole or not at all; ``config`` differs from what the broker began
with only in settings that may change while it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from rmq_ray.codec.config_files import Changes, settings_file
from rmq_ray.codec.store_files import OURS
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import ConfigError
from rmq_ray.model.topics import DataVersion
from rmq_ray.protocol import live_settings
from rmq_ray.protocol.rate_limit import LIMIT, RateLimiter, limits_of
from rmq_ray.server.base.config_saver import ConfigSaver
from rmq_ray.server.base.runtime import BrokerRuntime

log = logging.getLogger("rmq_ray.server")
CONFIGURED, CHANGED, NEXT_START = "configured", "changed", "changed, from the next start"
Follower = Callable[[BrokerConfig], None]


class BrokerSettings:
    """``runtime.config``: as the topology file has it. Raises ``StoreCorrupt`` when the file of
    changes and its copy are unreadable.
    """

    def __init__(self, runtime: BrokerRuntime) -> None:
        self._base = base = runtime.config
        self._clock = runtime.clock
        self._file = settings_file(runtime.files, f"{base.store.path}/{OURS}/settings.json")
        changes, self.version = self._file.load() or ({}, DataVersion())
        self.changes = _that_hold(changes, base)
        self._began: BrokerConfig = live_settings.effective(base, self.changes)
        self.config = self._began
        """The settings in effect."""
        self.limiter = RateLimiter()
        self._followers: list[Follower] = []
        self._saver: ConfigSaver[Changes] = ConfigSaver(
            "settings.json",
            lambda: (dict(self.changes), self.version),
            self._file.save,
            runtime.offload,
        )
        self.save = self._saver.save
        self._limit()

    def follow(self, *followers: Follower) -> None:
        """Called in the loop with each new ``config``."""
        self._followers += followers

    def change(self, asked: Mapping[str, str]) -> None:
        """Take a change; ``save`` writes it. ``ConfigError`` where it is none; nothing is changed
        then.
        """
        changes = live_settings.with_changes(self.changes, asked, self._base)
        if changes != self.changes:
            self._take(changes, self.version.next(self._clock.now_ms()))

    def replace(self, changes: Mapping[str, str], version: DataVersion) -> None:
        """Of a slave: its master's. What would not hold with this one's own settings is left."""
        if version != self.version:
            self._take(_that_hold(changes, self._base), version)
            self.save()

    def rebase(self, base: BrokerConfig) -> None:
        """The topology file says otherwise now of settings that change at run time."""
        self._base = base
        self._take(self.changes, self.version)

    def forget(self, kind: str, name: str) -> None:
        """A topic or group is gone: so are its limits."""
        gone = [key for key in self.changes if key.startswith(f"{LIMIT}{kind}.{name}.")]
        if gone:
            self.change(dict.fromkeys(gone, ""))
            self.save()

    def value(self, name: str) -> str:
        """What is set, as it is written; "" for a limit that there is not."""
        if name.startswith(LIMIT):
            return self.changes.get(name, "")
        one = live_settings.setting(name)
        changed = self.changes.get(one.name)
        return changed or live_settings.told(live_settings.configured(self.config, one.name))

    def limits(self) -> dict[str, str]:
        """The limits among the changes, by their names."""
        return {name: value for name, value in self.changes.items() if name.startswith(LIMIT)}

    def rows(self) -> list[dict[str, Any]]:
        """Each setting that may be changed: ``name``, ``value`` in effect, ``source``, ``next``
        (the value from the next start, where that is another), ``configured``, ``unit``,
        ``limits``, ``live``, ``rocketmq``.
        """
        found = []
        for name, one in live_settings.SETTINGS.items():
            value = live_settings.told(live_settings.configured(self.config, name))
            configured = live_settings.told(live_settings.configured(self._base, name))
            wanted = self.changes.get(name, configured)
            waits = not one.live and _differ(wanted, value)
            source = NEXT_START if waits else CHANGED if name in self.changes else CONFIGURED
            found.append(
                {
                    "name": name,
                    "value": value,
                    "source": source,
                    "next": wanted if waits else None,
                    "configured": configured,
                    "unit": one.unit,
                    "limits": one.limits,
                    "live": one.live,
                    "rocketmq": one.rocketmq,
                }
            )
        return found

    def _take(self, changes: dict[str, str], version: DataVersion) -> None:
        self.changes, self.version = changes, version
        live = {name: one for name, one in live_settings.SETTINGS.items() if one.live}
        wanted = {
            name: changes.get(name, live_settings.told(live_settings.configured(self._base, name)))
            for name in live
        }
        config = live_settings.effective(self._began, wanted)
        self._limit()
        if config != self.config:
            self.config = config
            for follower in self._followers:
                follower(config)

    def _limit(self) -> None:
        self.limiter.set(limits_of(self.changes), self._clock.monotonic_ms())


def _differ(one: str, other: str) -> bool:
    return one.lower() != other.lower()


def _that_hold(changes: Mapping[str, str], base: BrokerConfig) -> dict[str, str]:
    """All of them, or, where the topology file has changed so that they do not go together with it
    any more, those that do.
    """
    try:
        return live_settings.with_changes({}, changes, base)
    except ConfigError:
        found: dict[str, str] = {}
    for name, value in changes.items():
        try:
            found = live_settings.with_changes(found, {name: value}, base)
        except ConfigError as error:
            log.error("the changed setting %s is left out: %s", name, error)
    return found
