"""Cases of a test, of which `make test` has some and CI all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from pflbench.contract.small import EXECUTORS

engines = pytest.mark.parametrize("engine", EXECUTORS[:2])


def rest_slow(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """As parameters: those that are not among `kept` are slow. Raises ValueError for one that is no case."""
    cases = list(cases)
    if not {*kept} <= {*cases}:
        raise ValueError(f"not among the cases: {[one for one in kept if one not in cases]}")

    def slow(case: Any) -> Any:
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)

    return [one if one in kept else slow(one) for one in cases]
