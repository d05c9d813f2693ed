"""Settings that change while a broker runs: UPDATE_BROKER_CONFIG 25, BROKER_SETTINGS 20070.

    25       ``name=value`` lines, as RocketMQ's tools send them ─> taken whole, or refused whole
    20070    ─> msgpack {"settings": rows, "changes": {name: text}, "version": [counter, time],
                         "limiter": limits and how often they were felt}

Decides when the answer leaves: with the change on disk. Does not decide what may be changed
(``protocol.live_settings``).
"""

from __future__ import annotations

import msgpack

from rmq_ray.errors import ConfigError
from rmq_ray.ports import Peer
from rmq_ray.protocol.live_settings import parse_properties
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.tables.broker_settings import BrokerSettings


class SettingsHandlers:
    """Of one broker; loop only."""

    def __init__(self, settings: BrokerSettings, responder: Responder) -> None:
        self._settings = settings
        self._answer = responder.answer

    def update(self, command: Command, peer: Peer) -> None:
        """25: in effect and on disk when the answer leaves. Refused whole with what is possible."""
        try:
            asked = parse_properties(command.body_bytes().decode())
            if not asked:
                raise ConfigError("no setting was given: name=value, one a line")
            self._settings.change(asked)
        except UnicodeDecodeError as error:
            raise Refused(f"the body is no text: {error}", ResponseCode.SYSTEM_ERROR) from None
        except ConfigError as error:
            raise Refused(
                f"{error.message}; nothing was changed", ResponseCode.SYSTEM_ERROR
            ) from None

        def saved(error: Exception | None) -> None:
            answer = command.answer(fields={})
            if error is not None:
                remark = f"the change is in effect, its file could not be written: {error}"
                answer = command.answer(ResponseCode.SYSTEM_ERROR, {}, remark=remark)
            self._answer(command, peer, lambda: answer)

        self._settings.save(saved)

    def told(self, command: Command, peer: Peer) -> Command:
        """20070."""
        settings = self._settings
        found = {
            "settings": settings.rows(),
            "changes": settings.changes,
            "version": [settings.version.counter, settings.version.timestamp_ms],
            "limiter": settings.limiter.status(),
        }
        return command.answer(body=msgpack.packb(found))
