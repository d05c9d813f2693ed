"""The broker's consumer groups: settings, automatic creation, administration (protocol-behaviour 5,
12).

Decides: which groups exist and with which settings. Does not decide who is a member
(``server.groups.membership``) or how the table is saved; it calls ``changed`` after each change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rmq_ray.clock import Clock
from rmq_ray.errors import AdminError, RmqError
from rmq_ray.model.groups import SYSTEM_GROUPS, is_system_group
from rmq_ray.model.topics import DataVersion, GroupConfig

GROUPS_MAX = 50_000


class GroupTable:
    """All groups of one broker. ``check_name`` raises an ``RmqError`` for a name that no group may
    have.
    """

    def __init__(
        self,
        clock: Clock,
        auto_create: bool,
        check_name: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self.auto_create = auto_create
        self._check_name = check_name
        self._changed = changed
        self._groups: dict[str, GroupConfig] = {}
        self.version = DataVersion()

    def load(self, groups: Mapping[str, GroupConfig], version: DataVersion) -> None:
        """Replace the table by what the file says."""
        self._groups.clear()
        self._groups.update(groups)
        self.version = version

    def add_built_in(self) -> None:
        """The groups that every broker has."""
        for name in SYSTEM_GROUPS:
            if name not in self._groups:
                self._groups[name] = GroupConfig(name)
                self.version = self.version.next(self._clock.now_ms())

    def find(self, group: str) -> GroupConfig | None:
        """The group's settings; made with defaults where automatic creation is on and the name is
        lawful.
        """
        known = self._groups.get(group)
        if known is not None or not (self.auto_create or is_system_group(group)):
            return known
        try:
            self._check_name(group)
            return self.put(GroupConfig(group))
        except RmqError:
            return None

    def put(self, config: GroupConfig) -> GroupConfig:
        """Create or replace. Raises for a bad name and ``AdminError`` when the table is full."""
        self._check_name(config.name)
        if config.name not in self._groups and len(self._groups) >= GROUPS_MAX:
            raise AdminError(
                f"this broker has {GROUPS_MAX} groups already, {config.name} was not "
                f"created; delete unused ones",
                config.name,
            )
        if self._groups.get(config.name) != config:
            self._groups[config.name] = config
            self._bump()
        return config

    def delete(self, group: str) -> bool:
        """Whether it was there."""
        if self._groups.pop(group, None) is None:
            return False
        self._bump()
        return True

    def snapshot(self) -> tuple[dict[str, GroupConfig], DataVersion]:
        """A copy that a thread may keep."""
        return dict(self._groups), self.version

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def _bump(self) -> None:
        self.version = self.version.next(self._clock.now_ms())
        self._changed()
