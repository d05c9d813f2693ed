"""Who gets into the console, before any page's code runs. No broker is needed for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from rmq_ray.actors.discovery import StaticDiscovery
from rmq_ray.clock import ManualClock
from rmq_ray.console.page import FormChange
from rmq_ray.console.pages import PAGES
from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import ClusterView
from rmq_ray.console.web.app import create_app
from rmq_ray.errors import ConfigError

TOKEN = "a token that nobody guesses"
BASE = "http://127.0.0.1:8092"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def browser(clock: ManualClock) -> Iterator[TestClient]:
    source = ClusterView(StaticDiscovery("127.0.0.1:1"), clock=clock)
    app = create_app(source, ConsoleSettings(token=TOKEN))
    with TestClient(app, base_url=BASE, follow_redirects=False) as client:
        yield client


def test_without_a_session_every_page_leads_to_the_sign_in(browser: TestClient) -> None:
    for page in PAGES:
        method = "POST" if isinstance(page, FormChange) else "GET"
        answer = browser.request(method, page.path.replace("{", "").replace("}", ""))
        assert answer.status_code in (303, 401), page.path
    assert browser.get("/").headers["location"] == "/sign-in"


def test_the_token_opens_a_session_whose_cookie_no_script_reads(browser: TestClient) -> None:
    answer = browser.get("/sign-in", params={"token": TOKEN})
    cookie = answer.headers["set-cookie"].lower()
    assert answer.status_code == 200 and "httponly" in cookie and "samesite=strict" in cookie
    assert TOKEN not in answer.text and TOKEN not in cookie


def test_a_wrong_token_is_refused_and_guessing_ends(
    browser: TestClient, clock: ManualClock
) -> None:
    for _ in range(20):
        assert browser.get("/sign-in", params={"token": "wrong"}).status_code == 403
    refused = browser.get("/sign-in", params={"token": TOKEN})
    assert refused.status_code == 403 and "wait a minute" in refused.text
    clock.advance_ms(61_000)
    assert browser.post("/sign-in", data={"token": TOKEN}).status_code == 200


def test_a_session_ends_by_itself_and_by_signing_out(
    browser: TestClient, clock: ManualClock
) -> None:
    browser.get("/sign-in", params={"token": TOKEN})
    assert browser.get("/missing").status_code == 404
    clock.advance_ms(13 * 3_600_000)
    assert browser.get("/missing").status_code == 303
    page = browser.get("/sign-in", params={"token": TOKEN})
    missing = browser.get("/missing").text
    csrf = missing.split('name="csrf" value="')[1].split('"')[0]
    assert page.status_code == 200
    assert browser.post("/sign-out", data={"csrf": "guessed"}).status_code == 403
    assert browser.get("/missing").status_code == 404, "a forged form signs nobody out"
    assert browser.post("/sign-out", data={"csrf": csrf}).status_code == 303
    assert browser.get("/missing").status_code == 303


def test_a_host_that_is_not_the_consoles_is_refused(browser: TestClient) -> None:
    for host in ("evil.example", "evil.example:8092", "127.0.0.1.evil.example", "", "[::"):
        assert browser.get("/sign-in", headers={"host": host}).status_code == 421, host
    for host in ("localhost:8092", "LOCALHOST", "127.0.0.1", "[::1]:8092"):
        assert browser.get("/sign-in", headers={"host": host}).status_code == 200, host


@pytest.mark.parametrize("path", ["/", "/sign-in", "/missing", "/vendor/htmx.js", "/healthz"])
def test_every_answer_forbids_scripts_from_elsewhere_and_frames(
    browser: TestClient, path: str
) -> None:
    headers = browser.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_whatever_changes_something_is_a_change() -> None:
    """Nothing else takes a POST but signing in and out, which ask for the token or the form's."""
    app = create_app(ClusterView(StaticDiscovery("127.0.0.1:1")), ConsoleSettings(token=TOKEN))
    changes = {page.path for page in PAGES if isinstance(page, FormChange)}
    taking = {
        route.path
        for route in app.routes
        if isinstance(route, Route) and (route.methods or set()) - {"GET", "HEAD"}
    }
    assert taking == changes | {"/sign-in", "/sign-out"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({}, "token"), ({"token": TOKEN, "host": "0.0.0.0"}, "--name")],
)
def test_settings_that_would_leave_it_open_are_refused(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConsoleSettings(**wrong)  # type: ignore[arg-type]
