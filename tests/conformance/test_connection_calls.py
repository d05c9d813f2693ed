"""Connections of threads against a real listener: matching, many threads, callbacks, the server's
own requests, errors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ForeignClients, RemotingLimits
from rmq_ray.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    FrameTooLarge,
    HandshakeFailed,
    RemotingError,
    RequestTimeout,
    TooManyRequests,
)
from rmq_ray.model.ids import Address
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.wire.frame import BINARY, JSON, Command
from tests.support.faults.stopwatch import Stopwatch
from tests.support.wire import (
    ASK_BACK,
    BIG,
    CREDENTIALS,
    ECHO,
    FAIL,
    HOLD,
    PUSH_FIRST,
    REFUSE,
    RELEASE,
    Echo,
    Served,
    eventually,
)

pytestmark = pytest.mark.timeout(60)
LIMITS = RemotingLimits()


@pytest.fixture(name="served")
def _served() -> Iterator[Served]:
    with Served(Echo()) as served:
        yield served


@pytest.fixture(name="connection")
def _connection(served: Served) -> Iterator[Connection]:
    connection = connect(served)
    yield connection
    connection.close()


def connect(served: Served, limits: RemotingLimits = LIMITS, **callbacks: Any) -> Connection:
    return Connection(served.address, CREDENTIALS, limits, SYSTEM_CLOCK, **callbacks)


def echo(connection: Connection, body: bytes = b"hello", timeout_ms: int = 5_000) -> bytes:
    return connection.request(Command(ECHO, body=body, serialize=BINARY), timeout_ms).body_bytes()


def in_threads(count: int, work: Any) -> None:
    threads = [
        threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("size", [0, 1, 65_000, 65_536, 70_000, 3_000_000])
def test_bodies_of_every_size_come_back(connection: Connection, size: int) -> None:
    body = bytes(size)
    assert echo(connection, body) == body


def test_both_forms_fields_and_remarks_pass(connection: Connection) -> None:
    for form in (JSON, BINARY):
        command = Command(
            ECHO, fields={"topic": "T", "empty": "x"}, body=(b"a", b"b"), serialize=form
        )
        answer = connection.request(command, 5_000)
        assert (answer.fields, answer.body_bytes(), answer.serialize, command.opaque) == (
            command.fields,
            b"ab",
            form,
            0,
        )


def test_codes_of_answers_are_not_raised(connection: Connection) -> None:
    assert connection.request(Command(REFUSE), 5_000).code == 2
    assert connection.request(Command(FAIL), 5_000).code == 1


def test_answers_may_be_kept_while_others_come(connection: Connection) -> None:
    kept = [
        connection.request(Command(ECHO, body=b"%d" % number * 100, serialize=BINARY), 5_000)
        for number in range(50)
    ]
    assert [answer.body_bytes() for answer in kept] == [
        b"%d" % number * 100 for number in range(50)
    ]


def test_64_threads_each_get_their_own_answers(connection: Connection) -> None:
    wrong: list[bytes] = []

    def work(number: int) -> None:
        for turn in range(100):
            body = b"%d/%d" % (number, turn) * (1 + turn % 7)
            if echo(connection, body) != body:
                wrong.append(body)

    in_threads(64, work)
    assert wrong == []


def test_long_and_short_frames_of_many_threads_do_not_mix(connection: Connection) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(12):
            body = bytes((number,)) * (700_000 if turn % 3 == 0 else 50)
            if echo(connection, body, 20_000) != body:
                wrong.append(number)

    in_threads(12, work)
    assert wrong == []


def test_answers_out_of_order_find_their_callers(connection: Connection, served: Served) -> None:
    answers: dict[int, bytes] = {}

    def work(number: int) -> None:
        answers[number] = connection.request(
            Command(HOLD, body=b"%d" % number), 10_000
        ).body_bytes()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(10)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(served.handler.held) == 10)
    assert connection.request(Command(RELEASE), 5_000).code == 0
    for thread in threads:
        thread.join(10)
    assert answers == {number: b"%d" % number for number in range(10)}


def test_a_push_before_the_answer_goes_to_on_request(served: Served) -> None:
    pushed: list[tuple[int, bool, Any]] = []

    def on_request(command: Command, connection: Connection) -> None:
        pushed.append((command.code, command.is_oneway, command.fields))

    connection = connect(served, on_request=on_request)
    assert connection.request(Command(PUSH_FIRST), 5_000).code == 0
    assert pushed == [(40, True, {"consumerGroup": "g"})]
    connection.close()


def test_the_servers_requests_are_answered_by_on_request(served: Served) -> None:
    connection = connect(
        served,
        on_request=lambda command, _: command.answer(body=b"running " + command.body_bytes()),
    )
    assert (
        connection.request(Command(ASK_BACK, body=b"info"), 5_000).body_bytes() == b"running info"
    )
    connection.close()


def test_without_on_request_the_server_hears_that_the_code_is_not_supported(
    connection: Connection, served: Served
) -> None:
    peers: list[Any] = []
    outcomes: list[Any] = []
    echo(connection)
    served.call(lambda: peers.extend(served.listener.peers))
    served.call(lambda: peers[0].request(Command(307), 2_000, outcomes.append))
    assert eventually(lambda: outcomes)
    assert (outcomes[0].code, outcomes[0].remark) == (3, " request type 307 not supported")


def test_a_fault_in_on_request_is_answered_and_the_connection_goes_on(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    def on_request(command: Command, connection: Connection) -> None:
        raise KeyError("fault")

    connection = connect(served, on_request=on_request)
    assert connection.request(Command(ASK_BACK, body=b"x"), 5_000).code == 0
    assert echo(connection) == b"hello" and "fault" in caplog.text
    connection.close()


def test_the_server_gets_a_time_out_when_the_client_does_not_answer(served: Served) -> None:
    served.handler.ask_ms = 400
    connection = connect(served, on_request=lambda command, _: None)
    assert connection.request(Command(ASK_BACK, body=b"x"), 5_000).body_bytes() == b"RequestTimeout"
    connection.close()


def test_waiting_in_the_readers_thread_is_refused(served: Served) -> None:
    caught: list[Exception] = []

    def on_request(command: Command, connection: Connection) -> None:
        try:
            connection.request(Command(ECHO), 1_000)
        except ClientError as error:
            caught.append(error)

    connection = connect(served, on_request=on_request)
    connection.request(Command(PUSH_FIRST), 5_000)
    assert eventually(lambda: caught) and "request_async" in str(caught[0])
    connection.close()


def test_oneway_requests_arrive_and_are_not_answered(
    connection: Connection, served: Served
) -> None:
    for number in range(20):
        connection.oneway(Command(ECHO, body=b"%d" % number, serialize=BINARY))
    assert echo(connection) == b"hello"
    assert served.handler.oneways == [b"%d" % number for number in range(20)]


def test_callbacks_get_answers_once_each(connection: Connection) -> None:
    outcomes: list[Any] = []
    for number in range(2_000):
        connection.request_async(
            Command(ECHO, body=b"%d" % number, serialize=BINARY), 10_000, outcomes.append
        )
    assert eventually(lambda: len(outcomes) == 2_000, 20)
    assert [outcome.body_bytes() for outcome in outcomes] == [
        b"%d" % number for number in range(2_000)
    ]


def test_a_fault_in_a_callback_does_not_end_the_reader(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    connection.request_async(Command(ECHO), 5_000, lambda outcome: 1 // 0)
    assert echo(connection) == b"hello" and "ZeroDivisionError" in caplog.text


def test_a_time_out_is_an_unknown_outcome_and_the_thread_goes_on_with_clean_answers(
    connection: Connection, served: Served
) -> None:
    watch = Stopwatch()
    with pytest.raises(RequestTimeout):
        connection.request(Command(HOLD, body=b"late"), 200)
    assert watch.passed_s > 0.19 and watch.lived_s < 2
    assert (
        connection.request(Command(RELEASE), 5_000).body_bytes() == b""
    )  # the late answer comes before this one and wakes nobody
    assert echo(connection) == b"hello" and connection.alive


def test_time_outs_and_answers_that_race_never_mix_up_answers(connection: Connection) -> None:
    wrong: list[bytes] = []
    timeouts: list[int] = []

    def work(number: int) -> None:
        for turn in range(150):
            body = b"%d-%d" % (number, turn)
            try:
                if (
                    connection.request(Command(ECHO, body=body, serialize=BINARY), 0.3).body_bytes()
                    != body
                ):
                    wrong.append(body)
            except RequestTimeout:
                timeouts.append(number)

    in_threads(16, work)
    assert wrong == [] and echo(connection) == b"hello"


@pytest.mark.parametrize("timeout_ms", [0, -5])
def test_without_time_left_nothing_is_sent(
    connection: Connection, served: Served, timeout_ms: int
) -> None:
    for attempt in (
        lambda: echo(connection, b"x", timeout_ms),
        lambda: connection.request_async(Command(ECHO), timeout_ms, print),
    ):
        with pytest.raises(RequestTimeout, match="not sent"):
            attempt()
    assert echo(connection) == b"hello" and served.handler.seen == 1


def test_callbacks_time_out_within_half_a_second_of_their_deadline(connection: Connection) -> None:
    outcomes: list[Any] = []
    watch = Stopwatch()
    connection.request_async(Command(HOLD), 300, outcomes.append)
    assert eventually(lambda: outcomes)
    assert isinstance(outcomes[0], RequestTimeout) and watch.passed_s > 0.25 and watch.lived_s < 1.5


def test_above_the_limit_of_unanswered_requests_nothing_is_sent(served: Served) -> None:
    connection = connect(served, RemotingLimits(unanswered_requests_max=5))
    outcomes: list[Any] = []
    for _ in range(5):
        connection.request_async(Command(HOLD), 10_000, outcomes.append)
    with pytest.raises(TooManyRequests):
        connection.request_async(Command(HOLD), 10_000, outcomes.append)
    with pytest.raises(TooManyRequests):
        connection.request(Command(HOLD), 1_000)
    assert eventually(lambda: len(served.handler.held) == 5) and outcomes == []
    connection.close()
    assert eventually(lambda: len(outcomes) == 5) and len(served.handler.held) == 5


def test_a_frame_that_is_too_long_is_refused_before_anything_is_sent(
    connection: Connection, served: Served
) -> None:
    with pytest.raises(FrameTooLarge):
        connection.request(Command(ECHO, body=bytes(16_777_213)), 1_000)
    assert served.handler.seen == 0 and echo(connection) == b"hello"


def test_an_answer_that_has_no_frame_is_a_system_error(connection: Connection) -> None:
    assert connection.request(Command(BIG, body=b"16777213"), 10_000).code == 1
    assert len(connection.request(Command(BIG, body=b"16000000"), 20_000).body) == 16_000_000


@pytest.mark.parametrize(
    ("credentials", "reason"),
    [
        (replace(CREDENTIALS, secret=b"wrong"), "wrong secret"),
        (replace(CREDENTIALS, cluster="another"), "another cluster or role"),
        (replace(CREDENTIALS, role="name_server"), "another cluster or role"),
    ],
)
def test_other_credentials_are_refused_with_the_reason(
    served: Served, credentials: Any, reason: str
) -> None:
    with pytest.raises(HandshakeFailed, match=reason):
        Connection(served.address, credentials, LIMITS, SYSTEM_CLOCK)
    assert served.handler.seen == 0


def test_a_client_from_before_a_restart_is_one_line_however_often_it_comes(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        with pytest.raises(HandshakeFailed, match="each start of a cluster makes a new one"):
            Connection(served.address, replace(CREDENTIALS, secret=b"old"), LIMITS, SYSTEM_CLOCK)
    with pytest.raises(HandshakeFailed):
        Connection(served.address, replace(CREDENTIALS, cluster="b"), LIMITS, SYSTEM_CLOCK)
    assert eventually(lambda: caplog.text.count("another cluster or role") == 1)
    (line,) = [one for one in caplog.messages if "wrong secret" in one]
    assert "handshake refused" in line and "secret= needs that of this start" in line


def test_without_credentials_only_an_open_port_serves(served: Served) -> None:
    closed = Connection(served.address, None, LIMITS, SYSTEM_CLOCK)
    with pytest.raises(ConnectionLost):
        echo(closed)
    with Served(Echo(), ForeignClients.OPEN) as open_port:
        connection = Connection(open_port.address, None, LIMITS, SYSTEM_CLOCK)
        assert echo(connection) == b"hello" and open_port.handler.trusted == [False]
        connection.close()


def test_nobody_listening_is_connect_failed(served: Served) -> None:
    with Served(Echo()) as gone:
        pass
    with pytest.raises(ConnectFailed, match="nothing was sent"):
        Connection(gone.address, CREDENTIALS, LIMITS, SYSTEM_CLOCK)
    with pytest.raises(ConnectFailed):
        Connection(Address("host.invalid", 1), CREDENTIALS, LIMITS, SYSTEM_CLOCK)


def test_closing_ends_what_waits_and_says_so(served: Served) -> None:
    lost: list[Any] = []
    connection = connect(served, on_lost=lambda *args: lost.append(args))
    outcomes: list[Any] = []
    connection.request_async(Command(HOLD), 10_000, outcomes.append)
    connection.close()
    connection.close()
    assert eventually(lambda: outcomes) and isinstance(outcomes[0], ConnectionLost)
    for attempt in (
        lambda: echo(connection),
        lambda: connection.oneway(Command(ECHO)),
        lambda: connection.request_async(Command(ECHO), 1, outcomes.append),
    ):
        with pytest.raises(ConnectFailed, match="nothing was sent"):
            attempt()
    assert not connection.alive and lost == [] and len(outcomes) == 1


def test_errors_survive_pickling_with_their_values(served: Served) -> None:
    import pickle

    try:
        Connection(served.address, replace(CREDENTIALS, secret=b"wrong"), LIMITS, SYSTEM_CLOCK)
    except RemotingError as error:
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.args) == (HandshakeFailed, error.args)
    else:
        pytest.fail("the handshake went through")


def test_an_idle_connection_ends_itself_and_tells(served: Served) -> None:
    lost: list[Any] = []
    connection = connect(
        served, RemotingLimits(idle_timeout_ms=400), on_lost=lambda *args: lost.append(args)
    )
    assert eventually(lambda: not connection.alive)
    assert eventually(lambda: lost) and "idle" in str(lost[0][1])
