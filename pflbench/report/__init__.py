"""Tables and figures: a query, then a rendering.

Names here, code when it is needed: `pflbench --help` imports none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A line of the table of contents. `target` is module:function."""

    title: str
    target: str

    def load(self) -> Callable[..., Any]:
        """The function behind the entry; tables return `accuracy.Table`, plots return `style.Drawing`."""
        module, _, name = self.target.partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        return function


TABLES = {
    "accuracy": Entry("Accuracy of each method in each setting, mean and std over seeds", "pflbench.report.accuracy:build"),
}
PLOTS = {
    "curves": Entry("Accuracy over rounds or seconds, mean and band over seeds", "pflbench.report.curves:plot"),
    "distribution": Entry("Samples per client and class of each partition", "pflbench.report.distribution:plot"),
}
