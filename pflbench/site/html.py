"""A page as HTML. Everything that it needs is in the file: styles, scripts, plotly.js (packed, for its size), data."""

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
from pflbench.site.page import Page

_COMMAND = re.compile(r"`([^`]+)`|(?<=: )(pflbench .+)$")


def document(page: Page, run_pages: Iterable[tuple[int, dict[str, Any]]] = ()) -> str:
    """The whole file. run_pages: those that it holds, by run; a live page asks for them."""
    return printable(
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            run_pages=run_pages,
            style=Markup(_asset("style.css")),
            script=Markup(_asset("app.js")),
            plotly=Markup(_packed_plotly()),
            policy=policy(live=page.live),
        )
    )


@cache
def policy(*, live: bool) -> str:
    """What a browser may do for the page (Content-Security-Policy): run its two scripts, ask nobody but a live page's server.

    Whatever else came to stand in it, out of a database, is no script to the browser.
    """
    from plotly.offline import get_plotlyjs

    digests = (hashlib.sha256(text.encode()).digest() for text in (_asset("app.js"), get_plotlyjs()))
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    asked = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; connect-src {asked}; "
        "base-uri 'none'; form-action 'none'"
    )


def content(page: Page) -> str:
    """The part of it that changes with the database."""
    return printable(_environment().get_template("content.html.j2").render(page=page))


def run_page(content: dict[str, Any], pages: Collection[int]) -> str:
    """The page on one run, of what `runs.page` gives. pages: the runs that have one."""
    return printable(_environment().get_template("run.html.j2").render(run=content, pages=pages))


def to_json(value: Any) -> str:
    """JSON as a browser reads it: numbers that are not finite become null, arrays lists."""
    text: bytes = pydantic_core.to_json(value, inf_nan_mode="null", fallback=lambda array: array.tolist())
    return in_json(text.decode())


def ranges(runs: Iterable[int]) -> str:
    """[1, 2, 3, 7] -> '1-3, 7'."""
    blocks = [[run for _, run in block] for _, block in groupby(enumerate(sorted(set(runs))), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(block[0]) if len(block) == 1 else f"{block[0]}-{block[-1]}" for block in blocks)


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """{"train": {"lr": 0.1}} -> [("train.lr", "0.1")]."""
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in _flat(item, f"{name}.{key}" if name else key)]
    if isinstance(value, list):
        return [(name, ", ".join(map(str, value)))]
    return [(name, "none" if value is None else str(value))]


def _script_json(value: Any) -> Markup:
    """For the inside of a script element, which ends at the first '</script'."""
    return Markup(to_json(value).replace("<", "\\u003c"))


def _code(text: str) -> Markup:
    """Commands in a sentence as such: what stands in backticks, and what follows a colon."""
    marked, at = Markup(), 0
    for found in _COMMAND.finditer(text):
        marked += escape(text[at : found.start()]) + Markup("<code>{}</code>").format(found[1] or found[2])
        at = found.end()
    return marked + escape(text[at:])


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("pflbench.site"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"flat": _flat, "script_json": _script_json, "code": _code, "ranges": ranges, "private": private}
    return made


@cache
def _packed_plotly() -> str:
    """plotly.js as base64 of gzip, 2 MB instead of 5, which every browser since 2023 unpacks by itself."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


@cache
def _asset(name: str) -> str:
    return files("pflbench.site").joinpath("templates", name).read_text(encoding="utf-8")
