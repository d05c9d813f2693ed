"""Settings of brokers, limits of topics, groups and accounts, settings of groups: what changes
while a cluster runs.

Decides nothing that brokers do not decide themselves: a broker takes a change whole or refuses it
whole. Several brokers are asked one after the other; the first refusal ends it, and names the
brokers that took the change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgpack

from rmq_ray.client.admin.admin_link import AdminLink, body_of
from rmq_ray.errors import AdminError, ClientError, ConfigError, GroupNotFound
from rmq_ray.model.topics import GroupConfig
from rmq_ray.protocol.live_settings import encode_properties, told
from rmq_ray.protocol.rate_limit import BYTES, KINDS, MESSAGES, limit_key, split_key
from rmq_ray.protocol.validators import check_group
from rmq_ray.remoting.wire.bodies_admin import decode_group_configs, encode_group
from rmq_ray.remoting.wire.body_json import write
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.overview import ask_overview, read_overview


class AdminSettings(AdminLink):
    """The part of ``Admin`` that changes settings. On return each change is in effect and on
    disk.
    """

    def broker_settings(self, broker: str | None = None) -> list[dict[str, Any]]:
        """A row for each setting that may be changed, of one broker or of all: ``broker``,
        ``name``, ``value`` in effect, ``source`` ("configured", "changed", "changed, from the next
        start"), ``next``, ``configured``, ``unit``, ``limits``, ``live``, ``rocketmq`` (its name
        there).
        """
        return [
            {"broker": name, **row}
            for name, found in self._told(broker).items()
            for row in found["settings"]
        ]

    def set_broker(self, broker: str | None, settings: Mapping[str, Any]) -> list[str]:
        """Change settings of a broker, or of all (None); names are ours or RocketMQ's, a value of
        None or "" takes the change back. Its slaves follow within ten seconds. Returns the
        brokers.

        ``ClientError`` for what is no setting at all; ``AdminError`` with what is possible where a
        broker refuses: it has changed nothing then.
        """
        try:
            given = {name: "" if v is None else told(v) for name, v in settings.items()}
            text = encode_properties(given)
        except (ConfigError, AttributeError) as error:
            raise ClientError(f"settings must map names to values: {error}") from error
        if not text:
            raise ClientError("no setting was given: name=value")
        masters = self.masters()
        chosen = sorted(masters) if broker is None else [broker]
        done: list[str] = []
        for name in chosen:
            address = self._master(name)
            command = Command(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
            took = f" ({', '.join(done)} took it)" if done else ""
            self._ask(address, command, f"broker {name} did not change its settings{took}")
            done.append(name)
        return done

    def overviews(
        self, parts: Sequence[str] = ("status", "groups", "topics")
    ) -> dict[str, dict[str, Any]]:
        """Broker -> what it tells of these parts in one answer (``remoting.wire.overview``)."""
        return {
            name: read_overview(
                body_of(
                    self._ask(address, ask_overview(parts), f"broker {name} did not tell of itself")
                )
            )
            for name, address in sorted(self.masters().items())
        }

    def limits(self) -> list[dict[str, Any]]:
        """A row for each limit: ``broker``, ``kind`` ("topic", "group", "account"), ``name``,
        ``bytes_per_s``, ``messages_per_s`` (None = no limit).
        """
        return [
            {"broker": name, **row}
            for name, found in self._told(None).items()
            for row in found["limiter"]["limits"]
        ]

    def set_limit(
        self,
        kind: str,
        name: str,
        *,
        bytes_per_s: int | None = None,
        messages_per_s: int | None = None,
    ) -> None:
        """Limit a topic (what is sent to it), a group (what it is handed) or an account (both), on
        each broker; 0 = no limit, None leaves what there is. Sends over it are refused with
        SYSTEM_BUSY, after which producers send again within their time-out; pulls wait.
        """
        given = {BYTES: bytes_per_s, MESSAGES: messages_per_s}
        wanted = {
            limit_key(kind, name, measure): rate
            for measure, rate in given.items()
            if rate is not None
        }
        if kind not in KINDS or not wanted:
            raise ClientError(
                f"a limit is of a {', '.join(KINDS)}, bytes_per_s or messages_per_s, not {kind!r}",
                kind,
            )
        try:
            for key in wanted:
                split_key(key)
        except ConfigError as error:
            raise ClientError(error.message, name) from error
        self.set_broker(None, wanted)

    def alter_group(
        self,
        name: str,
        *,
        retries: int | None = None,
        retry_queues: int | None = None,
        consume: bool | None = None,
        broadcast: bool | None = None,
    ) -> None:
        """Change what is given of a group, on every master that has it, and leave the rest.
        ``retries``: deliveries after the first before a message is a dead letter. ``consume``:
        whether it may consume at all; ``broadcast``: in that way.

        ``GroupNotFound`` where no broker has it.
        """
        check_group(name)
        given = {
            "retry_max_times": retries,
            "retry_queues": retry_queues,
            "consume_enable": consume,
            "consume_broadcast_enable": broadcast,
        }
        changes = {field: value for field, value in given.items() if value is not None}
        if not changes:
            raise ClientError("say what to change of the group", name)
        for what, value, low, high in (
            ("retries", retries, -1, 10_000),
            ("retry_queues", retry_queues, 1, 64),
        ):
            if value is not None and (type(value) is not int or not low <= value <= high):
                raise ClientError(f"{what} must be {low} to {high}, not {value!r:.80}", value)
        masters = self.masters()
        known = self._group_configs(name)
        if not known:
            raise GroupNotFound(f"no broker knows the consumer group {name!r}", name)
        for broker, config in known.items():
            changed = replace(config, **changes)  # type: ignore[arg-type]
            self._ask(
                masters[broker],
                Command(
                    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                    body=write(encode_group(changed)),
                ),
                f"broker {broker} did not change group {name!r}",
            )

    def _group_configs(self, name: str) -> dict[str, GroupConfig]:
        """Broker -> the group's settings there."""
        command = Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        found = {}
        for broker, address in self.masters().items():
            answer = self._ask(address, command, f"broker {broker} did not tell its groups")
            groups = decode_group_configs(body_of(answer))[0]
            if name in groups:
                found[broker] = groups[name]
        return found

    def _told(self, broker: str | None) -> dict[str, dict[str, Any]]:
        masters = self.masters() if broker is None else {broker: self._master(broker)}
        found = {}
        for name, address in sorted(masters.items()):
            answer = self._ask(
                address,
                Command(RequestCode.BROKER_SETTINGS),
                f"broker {name} did not tell its settings",
            )
            try:
                found[name] = msgpack.unpackb(body_of(answer))
            except (ValueError, msgpack.UnpackException) as error:
                raise AdminError(f"broker {name} told its settings unreadably: {error}") from None
        return found
