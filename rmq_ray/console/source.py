"""How a page asks: every broker once, all at the same time, one deadline for the page.

    name server ─> who is there      (remembered: a page does not wait for a name server that hangs)
    each master ─> BROKER_OVERVIEW   all in parallel, until the deadline
    the answers that came, and the names of those that did not answer

Decides how long is waited and what counts as missing. Does not decide what is shown. Invariants: no
page waits longer than ``deadline_ms``; what did not answer is named and is never a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from rmq_ray.actors.access_keys import AccountProof
from rmq_ray.client.admin.admin import rows_of
from rmq_ray.client.admin.admin_link import TIMEOUT_MS, accepted, body_of
from rmq_ray.client.admin.dead_letters import DeadLetters
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.errors import ClusterError, RmqError, TopicNotFound
from rmq_ray.model.ids import MASTER_ID, Address
from rmq_ray.model.topics import BrokerData
from rmq_ray.ports import ClusterAddress, Discovery
from rmq_ray.remoting.wire.bodies import decode_cluster_info
from rmq_ray.remoting.wire.browse import BrowseHeader, ask_browse, read_browse
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import QueryMessageHeader
from rmq_ray.remoting.wire.overview import ask_overview, read_overview

THREADS = 64
BROKERS_SHARE = 0.85
"""Of a page's deadline: what it asks beside the brokers is waited for until the end of it."""
PLAN_MS, SEEN_MS = 60_000, 600_000
"""How often the cluster's plan is asked for; how long a broker is missed that is in no plan."""
ABSENT = "no name server knows it now: it was stopped, or has not started yet"
NAME_SERVER = "name server"
NO_END_MS = (1 << 63) - 1
SILENT = "it did not answer in time"


class ClusterProbe(Protocol):
    """What only a process in the cluster's Ray cluster can tell."""

    def controller(self) -> Mapping[str, Any]:
        """``state``, and ``members``: name -> what the controller knows of each."""
        ...

    def audit(self, lines: int, **wanted: Any) -> list[dict[str, Any]]:
        """See ``Cluster.audit``."""
        ...


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one page. ``found``: broker -> its overview; ``missing``: who did not answer -> why."""

    found: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str] = field(default_factory=dict)
    brokers: tuple[BrokerData, ...] = ()

    @property
    def limited(self) -> bool:
        """Whether only what an account has a right on was told."""
        return any(told.get("limited") for told in self.found.values())

    @property
    def partial(self) -> bool:
        """Whether something is missing."""
        return bool(self.missing)


class _AsAccount:
    """A discovery that reaches the same cluster as an account."""

    def __init__(self, discovery: Discovery, account: AccountProof) -> None:
        self._discovery = discovery
        self._account = account
        self.access_key = account.access_key
        if (names := getattr(discovery, "broker_names", None)) is not None:
            self.broker_names = names

    def lookup(self) -> ClusterAddress:
        """See ``ports.Discovery``."""
        return self._account.at(self._discovery.lookup())


class ClusterView:
    """Asks as one account, or as the process itself. Blocks; from any thread."""

    def __init__(
        self,
        discovery: Discovery,
        *,
        deadline_ms: int = 2_000,
        clock: Clock = SYSTEM_CLOCK,
        probe: ClusterProbe | None = None,
    ) -> None:
        self.discovery = discovery
        self.probe = probe
        self.deadline_ms = deadline_ms
        self.clock = clock
        self.admin = DeadLetters(discovery, timeout_ms=TIMEOUT_MS)
        """For changes: no page that is only read waits for it."""
        self._starting = Lock()
        self._ending = Lock()
        self._ended = False
        self._planned_ms = float("-inf")
        self._seen: dict[str, float] = {}
        """Broker -> when it was seen, or the plan last named it."""
        self._client: ClientInstance | None = None
        self._brokers: tuple[BrokerData, ...] = ()
        self._pages = ThreadPoolExecutor(THREADS, "rmq-console-page")
        self._wires = ThreadPoolExecutor(THREADS, "rmq-console-wire")

    @property
    def _share_ms(self) -> float:
        return self.deadline_ms * BROKERS_SHARE

    def as_account(self, account: AccountProof) -> ClusterView:
        """The same cluster, asked as this account."""
        return ClusterView(
            _AsAccount(self.discovery, account),
            deadline_ms=self.deadline_ms,
            clock=self.clock,
            probe=self.probe,
        )

    def refusal(self) -> str:
        """Why a name server does not let this account in; "" = it does."""
        try:
            self._brokers = self._ask_name_server(self.clock.monotonic_ms() + 2 * self.deadline_ms)
        except RmqError as error:
            return str(error.message)
        return ""

    def close(self) -> None:
        """End connections and threads."""
        with self._ending:
            self._ended = True
        for threads in (self._pages, self._wires):
            threads.shutdown(wait=False, cancel_futures=True)
        self.admin.close()
        if self._client is not None:
            self._client.release()
            self._client = None

    def overview(self, parts: Iterable[str] = (), *, group: str = "", topic: str = "") -> Answers:
        """What every broker tells of these parts (``remoting.wire.overview``)."""
        return self.ask(ask_overview(parts, group=group, topic=topic), read_overview)

    def browse(self, header: BrowseHeader, broker: str = "") -> Answers:
        """Messages of a topic (``remoting.wire.browse``), of all brokers that have it or of one.
        ``TopicNotFound`` where all answered, and none has it.
        """
        nowhere = (ResponseCode.TOPIC_NOT_EXIST,)
        answers = self.ask(ask_browse(header), read_browse, nowhere, broker)
        if not answers.found and not answers.missing:
            raise TopicNotFound(f"no broker has the topic {header.topic!r}", header.topic)
        return answers

    def find(self, topic: str, key: str, count: int, begin_ms: int = 0) -> Answers:
        """The newest records with a business key or a message id, at most 64 of each broker:
        broker -> ``rows`` as ``Admin.find_messages`` has them.
        """
        header = QueryMessageHeader(topic, key, count, begin_ms, NO_END_MS)
        command = Command(RequestCode.QUERY_MESSAGE, fields=header.to_fields())
        nothing = (ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST)
        return self.ask(command, lambda body: {"rows": rows_of("", body)}, nothing)

    def note(self, change: str, **about: str) -> None:
        """A line of the audit log, before something is done that no request of its own tells there.
        ``NotAuthorized`` for an account that is no administrator: then nothing may be done.
        """
        fields = {"change": change} | {name: value for name, value in about.items() if value}
        self.admin.note_change(fields)

    def ask(
        self,
        command: Command,
        read: Callable[[Any], Any],
        nothing: Iterable[int] = (),
        broker: str = "",
    ) -> Answers:
        """The same request to every master, or to that of one broker; ``read`` makes its answer of
        a body. ``nothing``: codes of brokers that have none of it: they are neither found nor
        missing.
        """
        until_ms = self.clock.monotonic_ms() + self._share_ms
        missing: dict[str, str] = {}
        try:
            self._brokers = self._ask_name_server(until_ms)
        except RmqError as error:
            if not self._brokers:
                raise
            missing[NAME_SERVER] = str(error.message)
        brokers = tuple(one for one in self._brokers if broker in ("", one.broker_name))
        there = {broker.broker_name for broker in brokers}
        expected = self._expected({one.broker_name for one in self._brokers}, until_ms)
        missing |= dict.fromkeys(({broker} if broker else expected) - there, ABSENT)
        asked: dict[str, Callable[[], Any]] = {}
        for one in brokers:
            if MASTER_ID in one.addresses:
                address = Address.parse(one.addresses[MASTER_ID])
                asked[one.broker_name] = self._question(address, command, read, nothing, until_ms)
            else:
                missing[one.broker_name] = "it has no master now"
        found, silent = self._gather(self._wires, asked, until_ms)
        told = {name: answer for name, answer in found.items() if answer is not None}
        return Answers(told, missing | silent, brokers)

    def name_servers(self) -> dict[str, str]:
        """Address of each name server -> "" where it answers, else why it does not."""
        link = self._instance().link
        command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)

        def ask(address: Address) -> Callable[[], Any]:
            return lambda: link.invoke_name_server(address, command.again(), self._share_ms)

        asked = {str(address): ask(address) for address in link.name_server_addresses}
        _, missing = self._gather(self._wires, asked, self.clock.monotonic_ms() + self._share_ms)
        return {address: missing.get(address, "") for address in asked}

    def together(self, **questions: Callable[[], Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Several questions at the same time, within one deadline: what answered, and why the rest
        did not.
        """
        until_ms = self.clock.monotonic_ms() + self.deadline_ms
        return self._gather(self._pages, questions, until_ms)

    def _question(
        self,
        address: Address,
        command: Command,
        read: Callable[[Any], Any],
        nothing: Iterable[int],
        until_ms: float,
    ) -> Callable[[], Any]:
        def ask() -> Any:
            left_ms = max(1.0, until_ms - self.clock.monotonic_ms())
            answer = self._instance().invoke(address, command.again(), left_ms)
            accepted(answer, "it refused", nothing)
            return None if answer.code in nothing else read(body_of(answer))

        return ask

    def _gather(
        self,
        threads: ThreadPoolExecutor,
        questions: Mapping[str, Callable[[], Any]],
        until_ms: float,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        asked: dict[str, Future[Any]] = {}
        with self._ending:
            if self._ended:
                raise ClusterError("this session has ended: sign in again")
            asked = {name: threads.submit(question) for name, question in questions.items()}
        left_ms = max(0.0, until_ms - self.clock.monotonic_ms())
        answered = wait(asked.values(), left_ms / 1000).done
        found: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for name, future in asked.items():
            if future not in answered:
                future.cancel()
                missing[name] = SILENT
                continue
            try:
                found[name] = future.result(0)
            except RmqError as error:
                missing[name] = str(error.message)
        return found, missing

    def _expected(self, there: set[str], until_ms: float) -> set[str]:
        """Brokers that should be there: those of the cluster's plan, where somebody knows it, and
        those that were seen a while ago.
        """
        now_ms = self.clock.monotonic_ms()
        names = getattr(self.discovery, "broker_names", None)
        with self._ending:
            ask = names is not None and now_ms - self._planned_ms > PLAN_MS
            if ask:
                self._planned_ms = now_ms
        planned: Iterable[str] = ()
        if ask and names is not None:
            third_ms = now_ms + (until_ms - now_ms) / 3  # brokers need the rest
            planned = self._gather(self._wires, {"plan": names}, third_ms)[0].get("plan", ())
        with self._ending:
            self._seen |= dict.fromkeys((*there, *planned), now_ms)
            self._seen = {name: at for name, at in self._seen.items() if now_ms - at < SEEN_MS}
            return set(self._seen)

    def _ask_name_server(self, until_ms: float) -> tuple[BrokerData, ...]:
        """Half of the time is enough for it: brokers need the rest."""
        half_ms = (until_ms - self.clock.monotonic_ms()) / 2
        command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)

        def ask() -> tuple[BrokerData, ...]:
            answer = self._instance().name_server_invoke(command, half_ms)
            body = body_of(accepted(answer, "the name server refused"))
            return tuple(decode_cluster_info(body))

        found, silent = self._gather(self._wires, {"it": ask}, until_ms - half_ms)
        if silent:
            raise ClusterError(f"no name server told who is there: {silent['it']}")
        brokers: tuple[BrokerData, ...] = found["it"]
        return brokers

    def _instance(self) -> ClientInstance:
        with self._starting:
            if self._client is None:
                made = ClientInstance.get_or_create(self.discovery, clock=self.clock)
                made.start()
                self._client = made
            return self._client
