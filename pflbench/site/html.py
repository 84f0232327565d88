"""Renders a page as HTML. The file contains styles, scripts, plotly.js (compressed) and data."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Collection, Iterable
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

import pydantic_core
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pflbench.plain import in_json, printable, private
from pflbench.report.papermap import DRAWINGS, sources
from pflbench.site.page import MOST, Page
from pflbench.site.tables import sort_value
from pflbench.store.exchange.points import flat

_COMMAND = re.compile(r"`([^`]+)`|(?<=: )(pflbench .+)$")


def document(page: Page, run_pages: Iterable[tuple[int, dict[str, Any]]] = ()) -> str:
    """The whole file. run_pages: number and content of the pages of single runs; a live page requests them from the server."""
    return _rendered(
        "page.html.j2",
        page=page,
        run_pages=run_pages,
        style=Markup(_asset("style.css")),
        script=Markup(_asset("app.js")),
        plotly=Markup(_packed_plotly()),
        policy=policy(live=page.live),
    )


@cache
def policy(*, live: bool) -> str:
    """The Content-Security-Policy: only the page's two scripts run, and only a live page makes requests, to its server.

    So the browser executes nothing that came out of a database.
    """
    from plotly.offline import get_plotlyjs

    digests = (hashlib.sha256(text.encode()).digest() for text in (_asset("app.js"), get_plotlyjs()))
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    server = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; connect-src {server}; "
        "base-uri 'none'; form-action 'none'"
    )


def content(page: Page) -> str:
    """The part of the page that changes with the database."""
    return _rendered("content.html.j2", page=page)


def run_page(content: dict[str, Any], pages: Collection[int]) -> str:
    """The page of one run. content: of `runs.page`; pages: the runs that have a page."""
    return _rendered("run.html.j2", run=content, pages=pages)


def _rendered(template: str, **values: Any) -> str:
    return printable(_environment().get_template(template).render(**values))


def to_json(value: Any) -> str:
    """JSON for a browser: numbers that are not finite become null, NumPy's arrays lists."""
    text: bytes = pydantic_core.to_json(value, inf_nan_mode="null", fallback=lambda array: array.tolist())
    return in_json(text.decode())


def ranges(runs: Iterable[int]) -> str:
    """[1, 2, 3, 7] -> '1-3, 7'."""
    blocks = [[run for _, run in block] for _, block in groupby(enumerate(sorted(set(runs))), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(block[0]) if len(block) == 1 else f"{block[0]}-{block[-1]}" for block in blocks)


def _script_json(value: Any) -> Markup:
    """JSON inside a script element, which would end at the first '</script'."""
    return Markup(to_json(value).replace("<", "\\u003c"))


def _code(text: str) -> Markup:
    """A sentence with its commands in <code>: text in backticks, and a command after a colon."""
    return Markup(_COMMAND.sub(lambda found: f"<code>{found[1] or found[2]}</code>", escape(text)))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pflbench.site"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"flat": flat, "script_json": _script_json, "code": _code, "ranges": ranges, "private": private}
    environment.filters["sort_value"] = sort_value
    environment.globals |= {"sources": sources, "drawings": DRAWINGS, "most_pages": MOST}
    return environment


@cache
def _packed_plotly() -> str:
    """plotly.js as base64 of gzip: 2 MB instead of 5. Browsers since 2023 can unpack it."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


@cache
def _asset(name: str) -> str:
    return files("pflbench.site").joinpath("templates", name).read_text(encoding="utf-8")
