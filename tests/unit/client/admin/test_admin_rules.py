"""Administration without a cluster: what is refused before anything is sent, and which answer is
which error.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rmq_ray.client.admin.admin import Admin, _is_system
from rmq_ray.client.admin.admin_link import accepted
from rmq_ray.clock import ManualClock
from rmq_ray.errors import AdminError, ClientError, ResponseError, RmqError, TopicNotFound
from rmq_ray.model.topics import BrokerData
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command


class NobodyThere:
    """A discovery that fails the test when it is asked."""

    def lookup(self) -> ClusterAddress:
        pytest.fail("a wrong request went out")


@pytest.fixture
def admin() -> Admin:
    return Admin(NobodyThere())


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("create_topic", ("bad topic",)),
        ("create_topic", ("t", 0)),
        ("create_topic", ("t", 10_001)),
        ("create_topic", ("t", "4")),
        ("create_topic", ("t", True)),
        ("alter_topic", ("bad topic",)),
        ("delete_topic", ("",)),
        ("route", ("x" * 128,)),
        ("describe_topic", ("ä",)),
        ("group_lag", ("bad group",)),
        ("group_clients", ("",)),
        ("seek_group", ("g", "t", "yesterday")),
        ("seek_group", ("g", "bad topic", "first")),
        ("seek_group", ("g", "t", 1.5)),
        ("seek_group", ("g", "t", 1_795_834_904)),
        ("skip_group", ("g", "bad topic")),
        ("clone_group", ("g", "bad group", "t")),
        ("consume_directly", ("bad group", "c", "00" * 16, "broker-a")),
        ("running_info", ("bad group", "c")),
        ("delete_group", ("bad group",)),
        ("find_messages", ("t", "")),
        ("find_messages", ("bad topic", "k")),
        ("message_at", ("xyz",)),
        ("message_at", ("00" * 20,)),
    ],
)
def test_wrong_values_are_refused_before_anything_is_sent(
    admin: Admin, call: str, arguments: tuple
) -> None:
    with pytest.raises(ClientError):
        getattr(admin, call)(*arguments)


@pytest.mark.parametrize(
    "changes",
    [
        {"permission": 0},
        {"permission": 7},
        {"read_queues": 0},
        {"write_queues": -1},
        {"retention_hours": -1},
        {"retention_hours": "24"},
        {"retention_hours": 1.5},
        {"retention_hours": True},
    ],
)
def test_wrong_topic_settings_are_refused_before_anything_is_sent(
    admin: Admin, changes: dict
) -> None:
    with pytest.raises(ClientError):
        admin.create_topic("t", **changes)


@pytest.mark.parametrize("changes", [{"queues": 0}, {"permission": 7}, {"retention_hours": -1}])
def test_a_topic_is_not_altered_to_what_no_broker_takes(admin: Admin, changes: dict) -> None:
    with pytest.raises(ClientError):
        admin.alter_topic("t", **changes)


def test_closing_an_admin_that_asked_nothing_does_nothing(admin: Admin) -> None:
    admin.close()
    assert admin._instance is None


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, TopicNotFound),
        (ResponseCode.SYSTEM_ERROR, AdminError),
        (ResponseCode.NO_PERMISSION, AdminError),
        (ResponseCode.MESSAGE_ILLEGAL, AdminError),
        (ResponseCode.SYSTEM_BUSY, ResponseError),
    ],
)
def test_every_refusal_is_a_typed_error_with_the_peers_words(
    code: int, error: type[Exception]
) -> None:
    asked = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    with pytest.raises(error, match="broker-a refused: because"):
        accepted(asked.answer(code, remark="because"), "broker-a refused")
    with pytest.raises(error, match=f"code {int(code)}"):
        accepted(asked.answer(code), "broker-a refused")
    assert accepted(asked.answer(code), "", accept=(code,)).code == code


def test_success_is_handed_through() -> None:
    answer = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC).answer(body=b"x")
    assert accepted(answer, "") is answer


def test_topics_of_the_system_of_brokers_and_of_groups_are_told_apart_from_users() -> None:
    own = {"broker-a", "default"}
    system = [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "%RETRY%g",
        "%DLQ%g",
        "broker-a",
        "default",
        "rmq_sys_anything",
        "default_REPLY_TOPIC",
    ]
    assert [name for name in system if not _is_system(name, own)] == []
    assert [name for name in ("orders", "broker-b", "retry", "TBW") if _is_system(name, own)] == []


class Stopped:
    """A discovery that knows whether brokers were stopped on purpose."""

    def __init__(self, **stopped: bool) -> None:
        self.stopped = {f"broker-{name}": is_stopped for name, is_stopped in stopped.items()}
        self.asked = 0

    def lookup(self) -> ClusterAddress:
        raise AssertionError("nobody has to connect for this")

    def stopped_brokers(self) -> dict[str, bool]:
        self.asked += 1
        return self.stopped


@pytest.mark.parametrize(
    ("stopped", "why", "waited_ms"),
    [
        ({"a": True}, "broker-a stopped: start it with `rmq-ray broker start broker-a`", 0),
        ({"a": True, "b": False}, "no broker is registered", 30_000),
        ({}, "no broker is registered", 30_000),
    ],
)
def test_brokers_that_were_stopped_on_purpose_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, stopped: dict[str, bool], why: str, waited_ms: int
) -> None:
    clock, discovery = ManualClock(1_000), Stopped(**stopped)
    admin = Admin(discovery, timeout_ms=30_000)
    monkeypatch.setattr(admin, "_client", lambda: SimpleNamespace(clock=clock))
    monkeypatch.setattr(admin, "brokers", list)
    with pytest.raises(AdminError, match=why):
        admin.masters()
    waited = clock.monotonic_ms() - ManualClock(1_000).monotonic_ms()
    assert waited_ms <= waited < waited_ms + 100 and discovery.asked == 1


def test_what_needs_a_stopped_broker_names_it_and_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Admin(Stopped(a=True, b=False))
    there = [BrokerData("default", "broker-b", {0: "127.0.0.1:10911"})]
    monkeypatch.setattr(admin, "brokers", lambda: there)
    monkeypatch.setattr(admin, "_client", lambda: SimpleNamespace(clock=ManualClock()))
    unknown = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC).answer(ResponseCode.TOPIC_NOT_EXIST)
    monkeypatch.setattr(admin, "_name_server", lambda *_args, **_more: unknown)
    monkeypatch.setattr(admin, "groups", lambda **_more: [])
    helps = "broker-a stopped: start it with `rmq-ray broker start broker-a`"
    for asked in (
        lambda: admin.drain_broker("broker-a"),
        lambda: admin.broker_status("broker-a"),
        lambda: admin.describe_topic("orders"),
        lambda: admin.delete_topic("orders"),
        lambda: admin.seek_group("billing", "orders", to="first"),
    ):
        with pytest.raises(RmqError, match=helps):
            asked()
    with pytest.raises(AdminError, match="no broker 'broker-c' is registered; there are broker-b"):
        admin.drain_broker("broker-c")
