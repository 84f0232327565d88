"""PyTorch's CUDA build on a stand-in for NVIDIA's libraries, which `make cuda` loads; without that nothing here is a test.

What rounds were counted to do stands in a table below the tests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

LOADED = hasattr(ctypes.CDLL(None), "stand_in_counts")
collect_ignore_glob = [] if LOADED else ["test_*.py"]
HEAD = "method", "model", "clients", "kernels a step", "uncaptured steps", "waits", "reserved MiB", "estimate MiB"
COUNTED = "counted"


@pytest.fixture(autouse=True, scope="session")
def _memory_of_a_whole_card() -> None:
    """PyTorch asks once how much memory a device has, and limits by that: before a test leaves less."""
    for index in range(torch.cuda.device_count()):
        torch.cuda.get_device_properties(index)


@pytest.fixture(autouse=True)
def _numbers_mean_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What compares them is told that all is well, but for the few that a round decides by."""
    from support.cuda.stand_in import SmallNumbers

    from pflbench.engine.batched import program

    near = program._near
    monkeypatch.setattr(program, "_near", lambda *numbers: near(*numbers) or True)  # with what it takes of memory
    with SmallNumbers():
        yield


@pytest.fixture
def counted(record_property: Any) -> Any:
    """Takes what was counted into the table."""
    return lambda found: record_property(COUNTED, vars(found))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for status in ("passed", "failed") for report in terminalreporter.getreports(status)]
    found = [values for report in reports for name, values in report.user_properties if name == COUNTED]
    rows = [_row(one) for one in sorted(found, key=lambda one: (one["clients"], one["model"], one["method"]))]
    if rows:
        widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
        terminalreporter.section("rounds on PyTorch's CUDA build without a GPU")
        for row in (HEAD, ["-" * width for width in widths], *rows):
            terminalreporter.line("| " + " | ".join(map(str.ljust, row, widths)) + " |")


def _row(of: dict[str, Any]) -> tuple[str, ...]:
    uncaptured = ", ".join(f"{count} ({why})" for why, count in of["uncaptured"].items()) or "0"
    sizes = (f"{of[name] / 2**20:.0f}" for name in ("reserved", "estimate"))
    return of["method"], of["model"], str(of["clients"]), str(of["kernels"]), uncaptured, str(of["waits"]), *sizes
