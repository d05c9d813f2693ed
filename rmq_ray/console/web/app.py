"""The web application: routes, templates, static files, and how errors are told.

``create_app`` is plain: it needs a ``ClusterView`` and settings, no Ray and no socket. ``serving``
runs it. Pages are in ``pages``, what a page is in ``page``, who gets in in ``security``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rmq_ray.console import extras
from rmq_ray.console.page import Console, Visit, nav_of
from rmq_ray.console.pages import PAGES
from rmq_ray.console.rates import SAMPLE_MS, Rates
from rmq_ray.console.security import SIGN_IN, Guard, Session, Sessions, check_form, cookie_name
from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import Answers, ClusterView
from rmq_ray.console.web import words
from rmq_ray.errors import (
    ClientError,
    ClusterError,
    ConfigError,
    GroupNotFound,
    NotAuthorized,
    RemotingError,
    RmqError,
    TopicNotFound,
)

HERE = Path(__file__).parents[1]
STATUS: tuple[tuple[type[RmqError], int], ...] = (
    (NotAuthorized, 403),
    (TopicNotFound, 404),
    (GroupNotFound, 404),
    (ClientError, 400),
    (ConfigError, 400),
    (RemotingError, 503),
    (ClusterError, 503),
)
"""What an error is to a browser; the first that fits, else 502: a broker refused."""


def create_app(source: ClusterView, settings: ConsoleSettings) -> Starlette:
    """The console of one cluster. It closes ``source`` when it ends."""
    sessions = Sessions(source, settings, source.clock)
    rates = Rates()
    console = Console(settings, sessions, _templates(), nav_of(PAGES), rates)

    @asynccontextmanager
    async def life(_app: Starlette) -> AsyncIterator[None]:
        sampling = asyncio.create_task(_sample(source, rates), name="rates")
        yield
        sampling.cancel()
        console.resends.close()
        await run_in_threadpool(sessions.close)
        await run_in_threadpool(source.close)

    app = Starlette(
        routes=[
            *(page.route(console) for page in PAGES),
            *_signing(console),
            *_files(),
        ],
        middleware=[Middleware(Guard, sessions=sessions, settings=settings)],
        exception_handlers={RmqError: _failed, HTTPException: _failed},
        lifespan=life,
    )
    app.state.console = console
    return app


async def _sample(source: ClusterView, rates: Rates) -> None:
    """Until it is cancelled. A cluster that does not answer is a gap."""
    while True:  # ends with the application
        try:
            answers = await run_in_threadpool(source.overview, ["status"])
        except RmqError as error:
            answers = Answers({}, {"cluster": error.message})
        rates.add(source.clock.now_ms(), answers)
        await asyncio.sleep(SAMPLE_MS / 1000)


def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(words.FILTERS)
    return environment


def _files() -> list[Route | Mount]:
    found = extras.scripts()

    def vendor(request: Request) -> Response:
        path = found.get(request.path_params["name"])
        if path is None:
            raise HTTPException(404)
        return FileResponse(path, headers={"Cache-Control": "max-age=86400"})

    def alive(_request: Request) -> Response:
        return PlainTextResponse("ok")

    return [
        Mount("/static", StaticFiles(directory=HERE / "static")),
        Route("/vendor/{name}", vendor),
        Route("/healthz", alive),
    ]


def _signing(console: Console) -> list[Route]:
    """In and out. The token stands in the address once, and in no page."""
    settings, sessions = console.settings, console.sessions

    def form(why: str = "", status: int = 200) -> Response:
        template = console.templates.get_template("sign_in.html")
        told = template.render(cluster=settings.cluster, accounts=settings.accounts, why=why)
        return HTMLResponse(told, status)

    def opened(session: Session) -> Response:
        answer = HTMLResponse(console.templates.get_template("signed_in.html").render())
        answer.set_cookie(
            cookie_name(settings),
            session.id,
            max_age=settings.session_ms // 1000,
            httponly=True,
            samesite="strict",
        )
        return answer

    def ask(request: Request) -> Response:
        token = request.query_params.get("token")
        try:
            return form() if token is None else opened(sessions.by_token(token))
        except RmqError as error:
            return form(error.message, 403)

    async def told(request: Request) -> Response:
        async with request.form(max_fields=4, max_files=0) as given:
            keys = [str(given.get(name, "")) for name in ("token", "access_key", "secret_key")]
        try:
            if settings.accounts:
                return opened(await run_in_threadpool(sessions.by_account, *keys[1:]))
            return opened(sessions.by_token(keys[0]))
        except RmqError as error:
            return form(error.message, 403)

    async def leave(request: Request) -> Response:
        visit = Visit(console, request)
        async with request.form(max_fields=4, max_files=0) as given:
            check_form(request, visit.session, str(given.get("csrf", "")))
        await run_in_threadpool(sessions.end, visit.session)
        return RedirectResponse(SIGN_IN, 303)

    return [
        Route(SIGN_IN, ask, methods=["GET"]),
        Route(SIGN_IN, told, methods=["POST"]),
        Route("/sign-out", leave, methods=["POST"]),
    ]


def _failed(request: Request, error: Exception) -> Response:
    """A page that says what was wrong and what helps."""
    if isinstance(error, HTTPException):
        status, said, kind = error.status_code, str(error.detail), "not found"
    else:
        assert isinstance(error, RmqError)
        status, said, kind = status_of(error), error.message, type(error).__name__
    if getattr(request.state, "session", None) is None:
        return PlainTextResponse(said, status)
    visit = Visit(request.app.state.console, request)
    return visit.page("error.html", status=status, wrong=said, kind=kind)


def status_of(error: RmqError) -> int:
    """The HTTP status that stands for an error."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 502)
