"""The standing proof that nothing is lost: each test is a fault, tried as often as `--tries` says, and counts what it loses.

pytest tests/reliability                                    a few tries of those that are quick
pytest tests/reliability -m "" --tries 20 -k export         20 tries of each fault of `export`
pytest tests/reliability -m "" --tries full --table docs/reliability.md
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.faults import tally as tallies
from support.faults.client import Forks, forking
from support.faults.tally import Tally
from support.faults.victims import VICTIMS, Material, Of, Trials

_found: list[dict[str, Any]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("reliability")
    group.addoption("--tries", default=None, metavar="N|full", help="Tries of each fault. Default: as few as show something.")
    group.addoption("--table", default=None, metavar="PAGE", help="Write the table of faults into this page.")


def _asked(config: pytest.Config) -> int | None:
    text = config.getoption("--tries", None)
    if text is not None and not re.fullmatch(r"full|[1-9]\d*", text):
        raise pytest.UsageError(f"--tries {text}: a whole number from 1 on, or full.")
    return None if text is None else 0 if text == "full" else int(text)


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forking(tmp_path_factory.mktemp("forks")) as found:
        yield found


@pytest.fixture(scope="session")
def material(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Material:
    return Material(forks, tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="session")
def trials(forks: Forks, material: Material, tmp_path_factory: pytest.TempPathFactory) -> Of:
    """Of a victim by its name. Its undisturbed command is made once."""

    @cache
    def of(name: str) -> Trials:
        (victim,) = (victim for victim in VICTIMS if victim.name == name)
        return Trials(victim, forks, material, tmp_path_factory.mktemp("victim"))

    return of


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Counts what becomes of a fault's tries; a test that lost something, or saw something wrong, fails at its end."""
    item: Any = request.node
    parameter = item.callspec.id if hasattr(item, "callspec") else ""
    test = f"{item.path.name}::{item.name}"
    yield (counted := Tally(tallies.title(item.function.__doc__, parameter), test, _asked(request.config)))
    item.user_properties.append((tallies.PROPERTY, counted.plain()))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    counted = pyfuncitem.funcargs.get("tally")
    try:
        result = yield
    except pytest.skip.Exception as skipped:
        if isinstance(counted, Tally):
            counted.why_none = str(skipped)
        raise
    if isinstance(counted, Tally):
        assert counted.tries, "it tried nothing"
        assert not counted.wrong, counted.told()
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _found.extend(
            counted for name, counted in report.user_properties if name == tallies.PROPERTY and isinstance(counted, dict)
        )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table: on the terminal where it was asked for by --tries or --table, and on the page."""
    if not _found or (_asked(config) is None and config.getoption("--table", None) is None):
        return
    order = sorted(_found, key=lambda one: (one["test"].partition("::")[0], one["fault"]))
    terminalreporter.section("faults")
    for line in tallies.table(order):
        terminalreporter.line(line)
    page = config.getoption("--table", None)
    if page is not None:
        tallies.write(Path(page), order, "")
