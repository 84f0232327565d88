"""The page over HTTP on this machine alone, read-only, made anew when the database has changed."""

from __future__ import annotations

import errno
import re
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sqlalchemy import Connection, Engine

from pflbench.errors import UserError
from pflbench.site import html, runs
from pflbench.site.page import Page
from pflbench.store.failures import friendly
from pflbench.store.opened import require_in_place

HOST = "127.0.0.1"
OWN_NAMES = (HOST, "localhost", "[::1]")  # the last where a tunnel or proxy of this machine leads here
# Between two makings of a page, so many times as long as one took: it must not slow down the runs that it shows.
REST = 10.0
PATIENCE = 30.0  # seconds that a connection may say nothing
# Changes with every commit of another connection; PostgreSQL's also with those to its other databases.
_STATE = {"sqlite": "PRAGMA data_version", "postgresql": "SELECT pg_current_snapshot()"}


class Editions:
    """The page as of the newest commit, made when somebody asks. Safe to use from several threads."""

    def __init__(self, engine: Engine, make: Callable[[], Page]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._connection: Connection = engine.connect()
        self._started = time.time_ns()
        self._version, self._content, self._document = "", "", ""
        self._rest_until = 0.0

    def version(self) -> str:
        """Differs between two editions, and between two servers."""
        with self._lock:
            return self._current()

    def content(self) -> str:
        with self._lock:
            self._current()
            return self._content

    def document(self) -> str:
        with self._lock:
            self._current()
            return self._document

    def close(self) -> None:
        self._connection.close()

    def _current(self) -> str:
        if time.monotonic() >= self._rest_until and (found := self._state()) != self._version:
            began = time.monotonic()
            page = self._make()
            self._content, self._document, self._version = html.content(page), html.document(page), found
            self._rest_until = time.monotonic() + REST * (time.monotonic() - began)
        return f"{self._started}-{self._version}"

    def _state(self) -> str:
        """Another one when something was committed. Raises Vanished, and UserError where the server is away."""
        try:
            with friendly(self._connection.engine.url):
                require_in_place(self._connection)
                return str(self._connection.exec_driver_sql(_STATE[self._connection.dialect.name]).scalar_one())
        finally:
            self._connection.rollback()  # a transaction left open would see one state for ever


class Server(ThreadingHTTPServer):
    """Answers on 127.0.0.1 alone. Port 0 takes a free one. Raises UserError where the port is taken or not allowed."""

    daemon_threads = True

    def __init__(self, engine: Engine, make: Callable[[], Page], port: int) -> None:
        self.engine = engine
        self.editions = Editions(engine, make)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            self.editions.close()
            raise _refused(port, error) from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked and did not wait for the answer is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        self.editions.close()


def _refused(port: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return UserError(f"Port {port} is taken.", f"Another pflbench serve? Take another one: --port {port + 1}")
    return UserError(f"Port {port} cannot be used: {error.strerror}.", "Take one of 1024 to 65535: --port 8765")


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE  # of the socket: a connection that begins a request and never ends it is closed

    def do_GET(self) -> None:
        if not self._is_for_us():
            # Another site's name that leads to this machine: its scripts would read what is shown here.
            self._send(403, "text/plain", "Ask for 127.0.0.1 or localhost.\n")
            return
        try:
            status, kind, text = self._answer(self.path.partition("?")[0])
        except UserError as error:
            status, kind, text = 503, "text/plain", f"{error}\n"
        except Exception:
            self._send(500, "text/plain", "A bug of pflbench: please report what `pflbench serve` printed.\n")
            raise  # the server prints it and goes on
        self._send(status, kind, text)

    do_HEAD = do_GET

    def _answer(self, path: str) -> tuple[int, str, str]:
        pages: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("text/html", self.server.editions.document),
            "/content": ("text/html", self.server.editions.content),
            "/version": ("text/plain", self.server.editions.version),
        }
        if run := re.fullmatch(r"/run/(\d{1,15})", path):
            return self._run(int(run[1]))
        if path not in pages:
            return 404, "text/plain", "There is nothing here.\n"
        kind, make = pages[path]
        return 200, kind, make()

    def _run(self, run_id: int) -> tuple[int, str, str]:
        try:
            return 200, "application/json", html.to_json(runs.page(self.server.engine, run_id))
        except UserError as error:
            return 404, "text/plain", f"{error}\n"

    def _is_for_us(self) -> bool:
        return re.sub(r":\d*$", "", self.headers.get("Host", "")).lower() in OWN_NAMES

    def _send(self, status: int, kind: str, text: str, **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Content-Security-Policy", f"{html.policy(live=True)}; frame-ancestors 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Nothing: a line for every poll would bury what matters."""
