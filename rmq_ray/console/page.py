"""What a page is: a path, and a function that answers one visit.

    def topics(visit: Visit) -> Response:
        answers = visit.source.overview(["topics"])
        return visit.page("topics.html", answers, rows=...)

    PAGES = (Show("/topics", topics, nav="Topics"), Live("/live/topics", rows), FormChange(...))

``Show`` and ``Live`` only read. ``FormChange`` is a POST that changes something: it runs only where
the console may write, with the session's CSRF token. Functions are plain and may block: each runs
in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from rmq_ray.console.rates import Rates
from rmq_ray.console.resending import Resends
from rmq_ray.console.security import Session, Sessions, check_change
from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import Answers, ClusterView
from rmq_ray.errors import ClientError, NotAuthorized, RmqError

FORM_FIELDS_MAX = 2_000
LIVE_MAX = 100
"""Live tables that are open at once, in all browsers."""
EVENTS_MAX = 1_200
"""Of one live table; then the browser connects again."""


class Console:
    """What all pages of one console share. ``nav``: (path, words) of the pages in its menu."""

    def __init__(
        self,
        settings: ConsoleSettings,
        sessions: Sessions,
        templates: Environment,
        nav: tuple[tuple[str, str], ...],
        rates: Rates,
    ) -> None:
        self.settings = settings
        self.sessions = sessions
        self.templates = templates
        self.nav = nav
        self.rates = rates
        self.live = 0
        self.resends = Resends()


class Visit:
    """One request of a person who has signed in."""

    def __init__(self, console: Console, request: Request, form: FormData | None = None) -> None:
        self.console = console
        self.request = request
        self.form = form if form is not None else FormData()
        session: Session | None = request.state.session
        assert session is not None, "the guard lets nobody in without a session"
        self.session = session

    @property
    def source(self) -> ClusterView:
        """Asks as whoever signed in."""
        return self.session.source

    def part(self, name: str) -> str:
        """Of the path: ``/groups/{group}``."""
        return str(self.request.path_params[name])

    def query(self, name: str, default: str = "") -> str:
        """Of the address behind ``?``."""
        return self.request.query_params.get(name, default)

    def field(self, name: str, default: str = "") -> str:
        """A text of the form."""
        found = self.form.get(name, default)
        return found if isinstance(found, str) else default

    def fields(self, name: str) -> list[str]:
        """All texts of that name in the form: boxes that are ticked."""
        return [found for found in self.form.getlist(name) if isinstance(found, str)]

    def page(
        self, template: str, answers: Answers | None = None, status: int = 200, **data: Any
    ) -> Response:
        """A whole page. ``answers``: what it says of missing brokers."""
        said, self.session.said = self.session.said, ""
        return HTMLResponse(self.fragment(template, answers, said=said, **data), status)

    def fragment(self, template: str, answers: Answers | None = None, **data: Any) -> str:
        """The text of a template."""
        settings = self.console.settings
        found = self.console.templates.get_template(template)
        return found.render(
            nav=self.console.nav,
            path=self.request.url.path,
            request_query=self.request.url.query,
            cluster=settings.cluster,
            may_write=settings.allow_write,
            who=self.session.who,
            csrf=self.session.csrf,
            missing=dict(answers.missing) if answers is not None else {},
            limited=answers is not None and answers.limited,
            live_ms=settings.live_ms,
            **data,
        )

    def done(self, path: str, said: str) -> Response:
        """Behind a change: the page that shows it, which says ``said`` once."""
        self.session.said = said
        return RedirectResponse(path, 303)

    def number(self, name: str, default: int, low: int = 0, high: int = 1 << 62) -> int:
        """Of the address or of the form. ``ClientError`` for what is none, or out of bounds."""
        text = (self.field(name) or self.query(name)).strip()
        try:
            value = int(text) if text else default
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ClientError(f"{name} must be a whole number, {low} to {high}, not {text!r:.40}")
        return value

    def check_operator(self) -> None:
        """``NotAuthorized`` for an account that no broker tells about the whole cluster: for what
        is not asked as the account itself.
        """
        if not self.session.who:
            return
        answers = self.source.overview()
        if answers.limited or not answers.found:
            raise NotAuthorized("this is for administrators of the cluster", self.session.who)

    def download(self, name: str, text: str | bytes, kind: str) -> Response:
        """A file to save."""
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        return Response(
            text, 200, {"Content-Disposition": f'attachment; filename="{safe}"'}, media_type=kind
        )


@dataclass(frozen=True, slots=True)
class Show:
    """A page that is read. ``nav``: its words in the menu, "" = it is not there."""

    path: str
    view: Callable[[Visit], Response]
    nav: str = ""

    def route(self, console: Console) -> Route:
        """For Starlette."""

        def show(request: Request) -> Response:
            return self.view(Visit(console, request))

        return Route(self.path, show, methods=["GET"])


@dataclass(frozen=True, slots=True)
class Live:
    """A stream of server-sent events: ``view`` is called every ``live_ms``, and what it returns is
    the data of an event ``rows``.
    """

    path: str
    view: Callable[[Visit], str]

    def route(self, console: Console) -> Route:
        """For Starlette."""

        async def stream(request: Request) -> Response:
            if console.live >= LIVE_MAX:
                return PlainTextResponse("too many live tables are open", 503)
            return StreamingResponse(self._events(console, request), media_type="text/event-stream")

        return Route(self.path, stream, methods=["GET"])

    async def _events(self, console: Console, request: Request) -> AsyncIterator[str]:
        visit = Visit(console, request)
        console.live += 1
        try:
            for _ in range(EVENTS_MAX):
                if console.sessions.find(visit.session.id) is None:
                    return
                yield event(await run_in_threadpool(self._rows, visit))
                await asyncio.sleep(console.settings.live_ms / 1000)
        finally:
            console.live -= 1

    def _rows(self, visit: Visit) -> str:
        """What was shown before is no longer known where the cluster does not answer."""
        try:
            return self.view(visit)
        except RmqError as error:
            return visit.fragment("live_error.html", wrong=error.message)


@dataclass(frozen=True, slots=True)
class FormChange:
    """A form's POST that changes something. Nothing else may."""

    path: str
    view: Callable[[Visit], Response]

    def route(self, console: Console) -> Route:
        """For Starlette."""

        async def change(request: Request) -> Response:
            visit = Visit(console, request)
            async with request.form(max_fields=FORM_FIELDS_MAX, max_files=0) as form:
                sent = request.headers.get("x-csrf-token") or str(form.get("csrf", ""))
                check_change(request, visit.session, sent, console.settings)
                visit.form = form
                return await run_in_threadpool(self.view, visit)

        return Route(self.path, change, methods=["POST"])


ConsolePage = Show | Live | FormChange


def event(text: str, name: str = "rows") -> str:
    r"""
    >>> event("<p>\n</p>")
    'event: rows\ndata: <p>\ndata: </p>\n\n'
    """
    data = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{data}\n"


def nav_of(pages: tuple[ConsolePage, ...]) -> tuple[tuple[str, str], ...]:
    """(path, words), in their order."""
    return tuple((page.path, page.nav) for page in pages if isinstance(page, Show) and page.nav)
