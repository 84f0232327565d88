"""Results at equal cost (methods.md 2.12) equal sums by hand, and plain Python over random rounds."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import Engine
from support.report_database import add_run, spec
from support.store_samples import write_round

from pflbench.store import rounds, runs, write
from pflbench.store.runs import ALL, Budget, Measure, Result, RoundRule
from pflbench.store.write import RoundRecord

pytestmark = pytest.mark.servers
T = 10**12
ACCURACY = [0.10, 0.50, None, 0.40, 0.60, 0.60, 0.55]
VALIDATION = [0.1, 0.2, None, 0.5, 0.3, 0.9, 0.9]
FLOPS = [None, 3 * T, 1 * T, 4 * T, 1 * T, 5 * T, 9 * T]  # in all 3, 4, 8, 9, 14, 23
RULES = (RoundRule("best"), RoundRule("last"), RoundRule("mean-last", 2), RoundRule("val"))


def add(engine: Engine, seed: int = 0, **columns: list[float | int | None]) -> int:
    """A run of rounds with these columns."""
    run = write.create_run(engine, spec(seed=seed), {})
    write.update_run(engine, run, status="finished")
    for t, values in enumerate(zip(*columns.values(), strict=True)):
        series = {"global": (t / 100, 1.0)}
        write_round(engine, run, RoundRecord(round=t, series=series, **dict(zip(columns, values, strict=True))))
    return run


def at(engine: Engine, rule: RoundRule, measure: Measure, amount: float, run: int = 1) -> Result:
    limited = RoundRule(rule.rule, rule.last, Budget(measure, amount))
    return next(result for result in runs.results(engine, ALL, limited) if result.id == run)


def test_only_rounds_up_to_the_limit_count(engine: Engine) -> None:
    add(engine, 1, accuracy=[0.9] * 7, flops=[None, *[T] * 6])  # another run's rounds cost nothing of this one's
    run = add(engine, accuracy=ACCURACY, val_accuracy=VALIDATION, flops=FLOPS)
    expected: dict[float, list[tuple[float, int]]] = {  # accuracy and round by best, last, mean of the last 2, validation
        2: [(0.1, 0), (0.1, 0), (0.1, 0), (0.1, 0)],
        3: [(0.5, 1), (0.5, 1), (0.3, 1), (0.5, 1)],  # what costs exactly the limit is within
        4: [(0.5, 1), (0.5, 1), (0.3, 1), (0.5, 1)],  # round 2 was not evaluated
        8.99: [(0.5, 1), (0.4, 3), (0.45, 3), (0.4, 3)],
        9: [(0.6, 4), (0.6, 4), (0.5, 4), (0.4, 3)],
        14: [(0.6, 4), (0.6, 5), (0.6, 5), (0.6, 5)],  # of equally good rounds the earliest
        23: [(0.6, 4), (0.55, 6), (0.575, 6), (0.6, 5)],
        1000: [(0.6, 4), (0.55, 6), (0.575, 6), (0.6, 5)],
    }
    for limit, results in expected.items():
        found = [at(engine, rule, "flops", limit * T, run) for rule in RULES]
        assert [(pytest.approx(one.value), one.round) for one in found] == results, limit
        assert {one.spent for one in found} == {23 * T}
        assert {one.best for one in found} == {results[0][0]}
    whole = [next(one for one in runs.results(engine, ALL, rule) if one.id == run) for rule in RULES]
    assert [(one.value, one.round, one.used) for one in whole] == [(one.value, one.round, one.used) for one in found]
    assert (whole[0].within, whole[0].spent, found[0].within) == (None, None, 6)


def test_a_second_series_has_the_limit_of_its_run(engine: Engine) -> None:
    add(engine, accuracy=ACCURACY, flops=FLOPS)
    rule = RoundRule("best", at=Budget("flops", 8 * T))
    (found,) = rounds.by_series(engine, runs.results(engine, ALL, rule), "global", rule)
    assert (found.value, found.round) == (0.03, 3)


def test_what_bytes_seconds_and_rounds_are(engine: Engine) -> None:
    """Both ways, reception and update, without evaluation and what row 0 has."""
    ones: dict[str, list[float | int | None]] = {
        name: [99, *[t] * 6] for name, t in (("bytes_up", 2), ("bytes_down", 5), ("seconds_receive", 1), ("seconds_update", 3))
    }
    add(engine, accuracy=ACCURACY, seconds_evaluate=[7] * 7, **ones)
    for measure, each in (("bytes", 7), ("seconds", 4), ("rounds", 1)):
        for limit in range(7):
            found = at(engine, RoundRule("last"), measure, each * limit)
            assert (found.within, found.spent) == (limit, 6 * each)
            assert at(engine, RoundRule("last"), measure, each * limit + 0.9).within == limit
    curve = rounds.curves(engine, [1], spent="bytes")[1]
    assert curve.spent is not None
    assert curve.spent.tolist() == [0, 7, 21, 28, 35, 42]


def test_a_run_that_was_not_measured_throughout_has_no_result(engine: Engine) -> None:
    add(engine, accuracy=ACCURACY, flops=[None, T, T, None, T, T, T])
    add(engine, 1, accuracy=ACCURACY, seconds_update=[0.0, *[1.0] * 6])
    for run in (1, 2):
        found = at(engine, RoundRule("best"), "flops", 100 * T, run)
        assert (found.value, found.round, found.within, found.spent, found.best) == (None, None, None, None, 0.6)
    assert at(engine, RoundRule("best"), "seconds", 100, 2).value == 0.6
    curve = rounds.curves(engine, [1], spent="flops")[1]
    np.testing.assert_array_equal(curve.spent, [0, T, *[np.nan] * 4])  # evaluated: 0, 1, 3, 4, 5, 6
    assert rounds.costs(engine, [1], 0) == {}, "no participants: nothing was trained"


def test_a_sum_may_be_larger_than_an_integer_of_the_database(engine: Engine) -> None:
    add(engine, accuracy=[0.1, 0.2, 0.3], flops=[None, 9 * 10**18, 9 * 10**18])
    assert at(engine, RoundRule("best"), "flops", 1e19).value == 0.2


def test_flops_of_a_round_are_the_median_of_trained_rounds(engine: Engine) -> None:
    ones: list[float | int | None] = [0, 4, 4, 4, 0]
    add(engine, accuracy=[0.1] * 5, participants=ones, flops=[None, 5, 1, 30, 0])
    add(engine, 1, accuracy=[0.1] * 5, participants=ones, flops=[None, 5, None, 30, 0])
    add_run(engine, spec(seed=2), [0.1])
    assert {run: cost.flops for run, cost in rounds.costs(engine, [1, 2, 3], 0).items()} == {1: 5.0, 2: None}
