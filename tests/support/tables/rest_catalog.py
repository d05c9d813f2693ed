"""An Iceberg REST catalog: the routes that pyiceberg asks, in front of its own SQL catalog.

    with RestCatalog(tmp_path, {"s3.endpoint": ...}) as rest:
        load_catalog("lake", **rest.properties)

``lose_answers``: so many commits are carried out and then answered with this status, as by a
gateway that lost the answer; ``away``: every request is answered with this one, 0 = none.
``requests``: what was asked, as "POST /v1/...".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest

STATUS = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}
Answer = dict[str, Any] | None


class RestCatalog:
    """``properties``: of the catalog behind it, those of its files above all."""

    def __init__(self, directory: Path, properties: Mapping[str, str] | None = None) -> None:
        uri = f"sqlite:///{directory}/behind-rest.db"
        self._catalog = SqlCatalog("behind", uri=uri, **(properties or {}))
        self._one_at_a_time = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        url = f"http://127.0.0.1:{self._server.server_port}"
        self.properties = {"type": "rest", "uri": url, **(properties or {})}
        self.lose_answers: list[int] = []
        self.away = 0
        self.requests: list[str] = []

    def __enter__(self) -> RestCatalog:
        threading.Thread(target=self._server.serve_forever, name="rest-catalog").start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._catalog.engine.dispose()

    # --- routes -----------------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Answer]:
        """Status and JSON of a request."""
        if self.away:
            return self.away, told(RuntimeError("injected: away"), self.away)
        _, _, *words = map(unquote, urlsplit(path).path.split("/"))  # "", "v1"
        routes: dict[tuple[str, int], Callable[..., Answer]] = {
            ("GET", 1): lambda: {"defaults": {}, "overrides": {}},
            ("POST", 1): lambda: self._create_namespace(json.loads(body)),
            ("POST", 3): lambda name: self._create(name, body),
            ("GET", 4): self._load,
            ("POST", 4): lambda *_table: self._commit(body),
            ("DELETE", 4): self._drop,
        }
        arguments = words[1::2]
        with self._one_at_a_time:
            self.requests.append(f"{method} {path}")
            try:
                found = routes[method, len(words)](*arguments)
            except tuple(STATUS) as error:
                return STATUS[type(error)], told(error, STATUS[type(error)])
            except OSError as error:
                return 500, told(error, 500)
        if (method, len(words)) == ("POST", 4) and self.lose_answers:
            status = self.lose_answers.pop()
            return status, told(RuntimeError("injected: the answer was lost"), status)
        return 204 if found is None else 200, found

    def _create_namespace(self, asked: dict[str, Any]) -> Answer:
        self._catalog.create_namespace(tuple(asked["namespace"]), asked["properties"])
        return {"namespace": asked["namespace"], "properties": {}}

    def _create(self, namespace: str, body: bytes) -> Answer:
        asked = CreateTableRequest.model_validate_json(body)
        assert asked.partition_spec is not None
        self._catalog.create_table(
            (namespace, asked.name),
            asked.table_schema,
            asked.location,
            asked.partition_spec,
            properties=asked.properties,
        )
        return self._load(namespace, asked.name)

    def _load(self, namespace: str, name: str) -> Answer:
        table = self._catalog.load_table((namespace, name))
        metadata = json.loads(table.metadata.model_dump_json())
        return {"metadata-location": table.metadata_location, "metadata": metadata}

    def _commit(self, body: bytes) -> Answer:
        asked = CommitTableRequest.model_validate_json(body)
        name = (*asked.identifier.namespace.root, asked.identifier.name)
        table = self._catalog.load_table(name)
        done = self._catalog.commit_table(table, asked.requirements, asked.updates)
        return dict(json.loads(done.model_dump_json(by_alias=True)))

    def _drop(self, namespace: str, name: str) -> Answer:
        self._catalog.drop_table((namespace, name))
        return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        rest = self

        class Handler(BaseHTTPRequestHandler):
            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, found = rest.answer(self.command, self.path, body)
                text = b"" if found is None else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_DELETE = _do

            def log_message(self, *_said: Any) -> None:
                pass

        return Handler


def told(error: Exception, status: int) -> dict[str, Any]:
    """An error as the routes tell it."""
    return {"error": {"message": str(error), "type": type(error).__name__, "code": status}}
