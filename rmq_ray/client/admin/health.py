"""Whether a client can reach its cluster now: what a load balancer asks of a program.

    a name server ──who is there──> masters, one after the other, until one answers a heartbeat

Decides what is healthy: one name server and one master answer. Does not decide whether a message
would be stored: a full disk and a missing right are told to who sends.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.errors import RmqError
from rmq_ray.model.groups import Heartbeat
from rmq_ray.model.ids import MASTER_ID, Address
from rmq_ray.remoting.wire.bodies import decode_cluster_info, encode_heartbeat
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command


@dataclass(frozen=True, slots=True)
class Health:
    """Of a client's way to its cluster; true where a name server and a master answered in time.

    ``broker``: the name of that master, "" = none. ``problem``: what did not answer, and why; "" =
    healthy.
    """

    broker: str = ""
    problem: str = ""

    def __bool__(self) -> bool:
        return not self.problem


def look(instance: ClientInstance, timeout_ms: float) -> Health:
    """Ask. The name servers have half of the time, each master its share of what is left."""
    clock = instance.clock
    deadline_ms = clock.monotonic_ms() + timeout_ms
    try:
        answer = instance.link.ask_name_servers(
            Command(RequestCode.GET_BROKER_CLUSTER_INFO),
            timeout_ms / 2,
            deadline_ms - timeout_ms / 2,
        )
        if answer.code != ResponseCode.SUCCESS:
            return Health(problem=f"the name server refused: {_reason(answer)}")
        brokers = decode_cluster_info(answer.body_bytes())
    except RmqError as error:
        return Health(problem=f"no name server answers: {error}")
    masters = [found for found in brokers if MASTER_ID in found.addresses]
    problem = "no broker is registered at the name servers"
    beat = encode_heartbeat(Heartbeat(instance.client_id, (), (), frozenset()))
    for number, master in enumerate(masters):
        left_ms = (deadline_ms - clock.monotonic_ms()) / (len(masters) - number)
        if left_ms <= 0:
            return Health(problem=f"{problem}; no time was left for {len(masters) - number} more")
        try:
            address = Address.parse(master.addresses[MASTER_ID])
            answer = instance.invoke(address, Command(RequestCode.HEART_BEAT, body=beat), left_ms)
        except (RmqError, ValueError) as error:  # ValueError: it registered no address
            problem = f"broker {master.broker_name} does not answer: {error}"
            continue
        if answer.code == ResponseCode.SUCCESS:
            return Health(master.broker_name)
        problem = f"broker {master.broker_name} is not ready: {_reason(answer)}"
    return Health(problem=problem)


def _reason(answer: Command) -> str:
    return answer.remark or f"code {answer.code}"
