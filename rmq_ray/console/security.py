"""Who may see and change what, before a page's code runs.

    Host         one of the console's names, else 421: a foreign page cannot reach it by rebinding
    session      a cookie (HttpOnly, SameSite=Strict) that the token or an account was given for,
                 else the page to sign in
    POST         the session's CSRF token, from this site, and only where writes are allowed
    answer       a strict Content-Security-Policy: no inline script, nothing from elsewhere

Decides who gets in. Does not decide what an account may: brokers do, and audit it. Invariants: no
secret key is kept, only the proof that it makes; no answer without the headers; sessions end.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rmq_ray.actors.access_keys import AccountProof
from rmq_ray.clock import Clock
from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import ClusterView
from rmq_ray.errors import CredentialsInvalid, NotAuthorized

SESSIONS_MAX = 200
FAILURES_MAX = 20
"""Wrong tokens or keys in a minute; then nobody is asked for a while."""
MINUTE_MS = 60_000
SIGN_IN = "/sign-in"
OPEN_PATHS = ("/static/", "/vendor/", SIGN_IN, "/healthz")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(slots=True)
class Session:
    """One browser that signed in. ``source`` asks as its account."""

    id: str = field(repr=False)
    csrf: str = field(repr=False)
    who: str
    source: ClusterView
    until_ms: float
    said: str = ""
    """What the next page says of a change."""


class Sessions:
    """Of one console; the oldest goes when there are too many."""

    def __init__(self, source: ClusterView, settings: ConsoleSettings, clock: Clock) -> None:
        self._source = source
        self._settings = settings
        self._clock = clock
        self._lock = Lock()
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._failed_ms: list[float] = []

    def by_token(self, token: str) -> Session:
        """``NotAuthorized`` for a wrong one, and where accounts are asked for."""
        self._not_too_often()
        told = self._settings.token.encode()
        if self._settings.accounts or not hmac.compare_digest(token.encode(), told):
            raise self._refused("the token is not the one that `rmq-ray console` printed")
        return self._opened("", self._source)

    def by_account(self, access_key: str, secret_key: str) -> Session:
        """As that account: a name server says whether it is one. ``NotAuthorized``."""
        self._not_too_often()
        cluster = self._source.discovery.lookup().cluster
        try:
            proof = AccountProof.of(access_key, secret_key, cluster)
        except CredentialsInvalid as error:
            raise self._refused(error.message) from None
        source = self._source.as_account(proof)
        if why := source.refusal():
            source.close()
            raise self._refused(f"access key and secret do not fit: {why}")
        return self._opened(access_key, source)

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie, unless it has ended."""
        with self._lock:
            found = self._open.get(cookie)
        if found is not None and self._clock.monotonic_ms() > found.until_ms:
            self.end(found)
            return None
        return found

    def end(self, session: Session) -> None:
        """Sign out."""
        with self._lock:
            self._open.pop(session.id, None)
        if session.source is not self._source:
            session.source.close()

    def close(self) -> None:
        """All of them."""
        for session in list(self._open.values()):
            self.end(session)

    def _opened(self, who: str, source: ClusterView) -> Session:
        until_ms = self._clock.monotonic_ms() + self._settings.session_ms
        session = Session(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), who, source, until_ms
        )
        with self._lock:
            self._open[session.id] = session
            oldest = [next(iter(self._open.values()))] if len(self._open) > SESSIONS_MAX else []
        for one in oldest:
            self.end(one)
        return session

    def _not_too_often(self) -> None:
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            self._failed_ms = [at for at in self._failed_ms if now_ms - at < MINUTE_MS]
            if len(self._failed_ms) >= FAILURES_MAX:
                raise NotAuthorized("too many wrong tokens or keys: wait a minute")

    def _refused(self, why: str) -> NotAuthorized:
        with self._lock:
            self._failed_ms.append(self._clock.monotonic_ms())
        return NotAuthorized(why)


def cookie_name(settings: ConsoleSettings) -> str:
    """Cookies know no ports: consoles of one machine must not take one another's."""
    return f"rmq_console_{settings.port}"


class Guard:
    """Around the whole application: host, session, headers."""

    def __init__(self, app: ASGIApp, sessions: Sessions, settings: ConsoleSettings) -> None:
        self._app = app
        self._sessions = sessions
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        public = path.startswith(("/static/", "/vendor/"))

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    if not (public and name == "Cache-Control"):
                        headers[name] = value
            await send(message)

        if not self._known_host(Headers(scope=scope).get("host", "")):
            refusal = PlainTextResponse(
                "this console is not known by that name: start it with --name", 421
            )
            await refusal(scope, receive, headed)
            return
        request = Request(scope)
        session = self._sessions.find(request.cookies.get(cookie_name(self._settings), ""))
        request.state.session = session
        if session is None and not path.startswith(OPEN_PATHS):
            await self._to_sign_in(request)(scope, receive, headed)
            return
        await self._app(scope, receive, headed)

    def _known_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and name.lower() in self._settings.known_names

    def _to_sign_in(self, request: Request) -> ASGIApp:
        """htmx and live tables are told by a code; a person by a page."""
        if request.method != "GET" or "HX-Request" in request.headers:
            return PlainTextResponse("sign in first", 401, {"HX-Redirect": SIGN_IN})
        return RedirectResponse(SIGN_IN, 303)


def check_change(request: Request, session: Session, csrf: str, settings: ConsoleSettings) -> None:
    """Before anything is changed. ``NotAuthorized`` says why not."""
    if not settings.allow_write:
        raise NotAuthorized("this console only shows: start it with --allow-write to change things")
    check_form(request, session, csrf)


def check_form(request: Request, session: Session, csrf: str) -> None:
    """That a form is one of ours, sent from a page of ours."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        raise NotAuthorized("the form came from another site")
    if not hmac.compare_digest(csrf.encode(), session.csrf.encode()):
        raise NotAuthorized("the form is too old or not from this console: reload the page")
