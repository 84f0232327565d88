"""Random federations x every method, by the whole path into a database: PFLBENCH_FEDERATIONS of each (docs/reliability.md)."""

from __future__ import annotations

import os
import shutil
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from support.federations import cases
from support.made import Case, in_place, run
from support.properties import check_arrays, check_numbers, check_rounds, watched
from support.runs import interrupted, numbers, rows

from pflbench import methods
from pflbench.errors import Diverged, UserError
from pflbench.store import database as db

FEW = int(os.environ.get("PFLBENCH_FEDERATIONS", "1"))


def again(case: Case, store: Engine, after: int | None) -> None:
    """The same run, interrupted after a round or not."""
    if after is not None and after < case.spec.train.rounds:
        with in_place(case):
            interrupted(case.spec, store, after, replace(case.how, checkpoint_every=0))
    run(case, store)


def check(case: Case, after: int | None, stores: Sequence[Engine]) -> str:
    """Makes a run twice, in a database each; "diverged" or "finished"."""
    first, second = stores
    try:
        with watched(case) as seen:
            run(case, first)
    except Diverged:
        check_numbers(first)
        assert rows(first, "SELECT status FROM run") == [("diverged",)]
        return "diverged"
    ((run_id,),) = rows(first, "SELECT id FROM run")
    check_numbers(first)
    check_rounds(case, seen, first, run_id)
    check_arrays(case, first, run_id)
    again(case, second, after)
    assert numbers(second, run_id) == numbers(first, run_id), "the same run gives other bits"
    return "finished"


def many(name: str, examples: int, new: Path, folder: Path) -> Counter[str]:
    """How many runs ended in which way; those that are refused before they train count for none of the examples."""
    found: Counter[str] = Counter()

    @seed(zlib.crc32(name.encode()))
    # To shrink what fails would take minutes, and is seldom needed: federations are small.
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(name), st.none() | st.integers(0, 2))
    def each(case: Case, after: int | None) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        stores = [db.open_engine(db.to_url(str(shutil.copy(new, folder / f"{which}.db")))) for which in "ab"]
        try:
            found[check(case, after, stores)] += 1
        except UserError:
            assert not rows(stores[0], "SELECT 1 FROM run"), "refused, and yet begun"
            found["refused"] += 1
            reject()
        finally:
            for store in stores:
                store.dispose()

    each()
    return found


@pytest.mark.parametrize("examples", [FEW, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", methods.names(with_ala=True))
def test_random_federations(name: str, examples: int, new_database: Path, tmp_path: Path) -> None:
    found = many(name, examples, new_database, tmp_path)
    print(f"{name}: {dict(found)}")
    assert found["finished"] >= examples / 2
