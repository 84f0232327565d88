"""Serves the page over HTTP, to this machine only. It is rendered again when the database has changed."""

from __future__ import annotations

import errno
import re
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine

from pflbench.errors import UserError
from pflbench.site import html, runs
from pflbench.site.page import Page
from pflbench.store.failures import friendly
from pflbench.store.opened import require_in_place

HOST = "127.0.0.1"
OWN_NAMES = (HOST, "localhost", "[::1]")  # the last through a tunnel or proxy of this machine
# After rendering, the server rests REST times as long as that took: it must not slow down the runs.
REST = 10.0
TIMEOUT = 30.0  # seconds without data, after which a connection is closed
# Its value changes with every commit of another connection; PostgreSQL's also with commits to its other databases.
_STATE = {"sqlite": "PRAGMA data_version", "postgresql": "SELECT pg_current_snapshot()"}


class Edition(NamedTuple):
    """The page at one moment. version: differs between two editions, and between two servers."""

    version: str
    content: str
    document: str


class Editions:
    """Renders the page as of the newest commit, on request. Thread-safe."""

    def __init__(self, engine: Engine, make: Callable[[], Page]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._connection: Connection = engine.connect()
        self._started = time.time_ns()
        self._state, self._edition = "", Edition("", "", "")
        self._rest_until = 0.0

    def newest(self) -> Edition:
        """Raises Vanished, and UserError where the server is away."""
        with self._lock:
            if time.monotonic() >= self._rest_until and (state := self._stored_state()) != self._state:
                began = time.monotonic()
                page = self._make()
                self._edition = Edition(f"{self._started}-{state}", html.content(page), html.document(page))
                self._state, self._rest_until = state, time.monotonic() + REST * (time.monotonic() - began)
            return self._edition

    def close(self) -> None:
        self._connection.close()

    def _stored_state(self) -> str:
        """A text that changes with each commit."""
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
        """Ignores clients that did not wait for the answer."""
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
    timeout = TIMEOUT  # of the socket

    def do_GET(self) -> None:
        if not self._is_for_us():
            # Against DNS rebinding: a site whose name resolves to this machine could read the results.
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
        if run := re.fullmatch(r"/run/(\d{1,15})", path):
            try:
                found = runs.page(self.server.engine, int(run[1]))
            except UserError as error:
                return 404, "text/plain", f"{error}\n"
            return 200, "text/html", html.run_page(found, [found["id"], *found["alike"]])
        if path not in ("/", "/content", "/version"):
            return 404, "text/plain", "There is nothing here.\n"
        edition = self.server.editions.newest()
        if path == "/version":
            return 200, "text/plain", edition.version
        return 200, "text/html", edition.document if path == "/" else edition.content

    def _is_for_us(self) -> bool:
        return re.sub(r":\d*$", "", self.headers.get("Host", "")).lower() in OWN_NAMES

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Content-Security-Policy", f"{html.policy(live=True)}; frame-ancestors 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Logs nothing: there would be a line for every poll."""
