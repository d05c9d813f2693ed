"""SQL92 filters are checked at a broker before a consumer begins (CHECK_CLIENT_CONFIG 46;
protocol-behaviour 21.1).

Decides: what a refusal means for the user: a broker that is too old, that has filters switched off,
that reads the expression differently. A broker that cannot be asked now refuses nothing: it checks
every pull. Called by: consumers, in ``start`` and ``subscribe``. Tags need no check.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.errors import RemotingError, SubscriptionInvalid
from rmq_ray.model.groups import SQL92, Subscription
from rmq_ray.model.ids import Address
from rmq_ray.remoting.wire.bodies import encode_client_check
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command

FIRST_VERSION_WITH_FILTERS = 232
"""V4_1_0_SNAPSHOT in the numbers that frames carry."""
_PASSING = frozenset(
    (ResponseCode.SUCCESS, ResponseCode.STILL_RECOVERING, ResponseCode.SYSTEM_BUSY)
)

log = logging.getLogger("rmq_ray.client.consumer")


def check_filters(
    client: ClientInstance, group: str, subscriptions: Iterable[Subscription]
) -> None:
    """Have one broker of each topic check its SQL92 filter. ``SubscriptionInvalid`` when one is
    refused.
    """
    for subscription in subscriptions:
        if subscription.expression_type == SQL92:
            address = client.broker_for_topic(subscription.topic)
            if address is not None:
                _check(client, address, group, subscription)


def _check(
    client: ClientInstance, address: Address, group: str, subscription: Subscription
) -> None:
    command = Command(
        RequestCode.CHECK_CLIENT_CONFIG,
        body=encode_client_check(client.client_id, group, subscription),
    )
    try:
        answer = client.invoke(address, command)
    except RemotingError as error:
        log.warning(
            "filter of %s on %s was not checked, broker %s does not answer: %s",
            group,
            subscription.topic,
            address,
            error,
        )
        return
    if (
        answer.version < FIRST_VERSION_WITH_FILTERS
        or answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    ):
        raise SubscriptionInvalid(
            f"broker {address} is too old for SQL filters (4.1.0 is the first with them); "
            f"subscribe by tags",
            subscription.expression,
        )
    if answer.code not in _PASSING:
        refused = (
            f"broker {address} refuses the SQL filter of group {group!r} on {subscription.topic!r}"
        )
        raise SubscriptionInvalid(
            f"{refused}: {answer.remark or f'code {answer.code}'}", subscription.expression
        )
