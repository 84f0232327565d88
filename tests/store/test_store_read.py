"""What was written comes back, and the three rules of selection equal plain Python over the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from sqlalchemy import Engine, event
from support.report_database import add_partition, add_run, spec
from support.store_samples import write_round

from pflbench.errors import UserError
from pflbench.store import arrays, partitions, rounds, runs, write
from pflbench.store.runs import ALL, Result, RoundRule, RunScope
from pflbench.store.write import RoundRecord

pytestmark = pytest.mark.servers
ACCURACIES = [0.10, 0.50, None, 0.575, 0.575, 0.55]


@pytest.mark.parametrize(
    ("rule", "value", "at", "used"),
    [
        (RoundRule("best"), 0.575, 3, 1),  # of equally good rounds the earliest
        (RoundRule("last"), 0.55, 5, 1),
        (RoundRule("mean-last", 3), (0.575 + 0.575 + 0.55) / 3, 5, 3),
        (RoundRule("mean-last", 100), (0.1 + 0.5 + 0.575 + 0.575 + 0.55) / 5, 5, 5),
    ],
)
def test_of_the_evaluated_rounds_the_rule_chooses(engine: Engine, rule: RoundRule, value: float, at: int, used: int) -> None:
    add_run(engine, spec(), [0.9] * 3, status="running")
    add_run(engine, spec(seed=1), [*ACCURACIES, None])
    add_run(engine, spec(seed=2), [])
    _, result, none = runs.results(engine, ALL, rule)
    assert (result.value, result.round, result.used) == (pytest.approx(value, abs=1e-15), at, used)
    assert (none.value, none.round) == (None, None)


@pytest.mark.servers("never")
def test_results_are_found_along_indexes(engine: Engine) -> None:
    """No statement of a table scans `round`: with 2,000,000 of them a scan would take the whole second by itself."""
    statements: list[tuple[str, object]] = []
    event.listen(engine, "before_cursor_execute", lambda c, cur, sql, values, *_: statements.append((sql, values)))
    for rule in (RoundRule("best"), RoundRule("last"), RoundRule("mean-last", 10)):
        runs.results(engine, ALL, rule)
    listed = [s for s in statements if s[0].startswith("SELECT")]
    assert len(listed) == 3
    with engine.connect() as c:
        for sql, values in listed:
            plan = [row.detail for row in c.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)]  # type: ignore[arg-type]
            rounds = [line for line in plan if " round" in line]
            assert rounds
            assert all(line.startswith("SEARCH") for line in rounds), plan


def test_a_run_is_found_by_number_key_and_beginning_of_the_key(engine: Engine) -> None:
    add_run(engine, spec(), [0.1])
    newest = add_run(engine, spec(), [0.1, 0.2])
    other = add_run(engine, spec(seed=1), [0.1, 0.3, 0.2])
    key = spec().key
    assert [runs.find(engine, text).id for text in (newest, str(newest), key, key.upper(), key[:8])] == [newest] * 5
    assert runs.find(engine, 1).attempt == 1
    info = runs.find(engine, other)
    assert info.spec == spec(seed=1).model_dump(mode="json")
    assert (info.best, info.last_round, info.partition_label, info.rounds) == (0.3, 2, "Dir(0.1)", 2000)
    for missing in ("99", "zzz", ""):
        with pytest.raises(UserError, match="No run"):
            runs.find(engine, missing)


def test_a_number_never_means_a_key(engine: Engine) -> None:
    """`runs rm 1`, typed twice, must not remove the run whose key begins with 1."""
    seed = next(seed for seed in count() if spec(seed=seed).key[:8].isdigit())
    run = add_run(engine, spec(seed=seed), [])
    key = spec(seed=seed).key
    for length in range(1, 8):
        if key[:length] != str(run):
            with pytest.raises(UserError, match=f"No run '{key[:length]}'"):
                runs.find(engine, key[:length])
    assert runs.find(engine, key[:8]).id == run


def test_a_beginning_of_several_keys_is_refused(engine: Engine) -> None:
    seen: dict[str, int] = {}
    for seed in range(40):  # 40 keys, 16 first digits: two must agree
        first = spec(seed=seed).key[0]
        add_run(engine, spec(seed=seed), [])
        seen[first] = seen.get(first, 0) + 1
    digit = next(d for d, count in seen.items() if count > 1 and not d.isdigit())
    with pytest.raises(UserError, match=f"{seen[digit]} runs begin with '{digit}'"):
        runs.find(engine, digit)


def test_a_run_shows_partition_rounds_series_and_artifacts(engine: Engine) -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    partition = add_partition(engine)
    run = add_run(
        engine, spec(), [0.1, 0.2, 0.3], partition=partition,
        series={"global": (0.25, 1.5)}, artifacts={"W": weights},
        clients=np.array([0, 3]), correct=np.array([8, 15]), total=np.array([10, 30]), loss=np.array([1.5, 2.5]),
    )  # fmt: skip
    newest = rounds.newest_rows(engine, run, 2)
    assert [row["round"] for row in newest] == [1, 2]
    assert [row["accuracy"] for row in newest] == [0.2, 0.3]
    assert arrays.listed(engine, run) == [{"name": "W", "round": 2, "dtype": weights.dtype.name, "shape": [2, 3]}]
    found = partitions.find(engine, str(runs.find(engine, run).partition))
    assert found.id == partition
    np.testing.assert_array_equal(found.train + found.test, [[9, 0], [3, 6]])
    np.testing.assert_array_equal(arrays.read_one(engine, run, "W"), weights)
    (series,) = rounds.second_series(engine, run)
    assert (series.name, series.round.tolist(), series.accuracy.tolist()) == ("global", [2], [0.25])
    clients = rounds.clients(engine, run)
    assert (clients.round, clients.client.tolist(), clients.total.tolist()) == (2, [0, 3], [10, 30])
    assert clients.correct.sum() / clients.total.sum() == 0.575  # methods.md 2.1
    with pytest.raises(UserError, match=r"has no 'W' of round 1\.\nIt has 1, of round 2 to 2\."):
        arrays.read_one(engine, run, "W", 1)
    for wrong in (
        lambda: arrays.read_one(engine, run, "V"),
        lambda: rounds.clients(engine, run, 1),
        lambda: partitions.find(engine, "f00"),
        lambda: partitions.find(engine, "7"),
    ):
        with pytest.raises(UserError):
            wrong()


def test_curves_hold_the_evaluated_rounds_and_the_training_time(engine: Engine) -> None:
    empty, run = add_run(engine, spec(), []), add_run(engine, spec(seed=1), ACCURACIES, seconds=2.0)
    curves = rounds.curves(engine, [empty, run], spent="seconds")
    assert list(curves) == [run]
    assert curves[run].round.tolist() == [0, 1, 3, 4, 5]
    assert curves[run].accuracy.tolist() == [a for a in ACCURACIES if a is not None]
    assert curves[run].spent.tolist() == [0.0, 2.0, 6.0, 8.0, 10.0]  # type: ignore[union-attr]  # without evaluation's 5 s
    assert rounds.curves(engine, [empty]) == {}


def test_thinned_curves_are_true_points_with_first_and_last(engine: Engine) -> None:
    values = np.random.default_rng(0).random(101).tolist()
    long, short = add_run(engine, spec(), values), add_run(engine, spec(seed=1), values[:40])
    curves = rounds.curves(engine, [long, short], points=11)
    assert curves[long].round.tolist() == list(range(0, 101, 10))
    assert curves[short].round.tolist() == [0, 10, 20, 30]
    assert curves[long].accuracy.tolist() == [values[t] for t in range(0, 101, 10)]


METHODS = ("m1", "m2", "m3", "m4")
# Public reads of the rooms below that find runs by themselves -> the numbers of those that they find.
FINDING: dict[str, Callable[[Engine, RunScope], set[int]]] = {
    "runs.stored": lambda engine, among: {run.id for run in runs.stored(engine, among)},
    "runs.results": lambda engine, among: {run.id for run in runs.results(engine, among, RoundRule("best"))},
    "runs.distinct": lambda engine, among: {int(name) for name in runs.distinct(engine, among, "dataset")},
    "rounds.speeds": lambda engine, among: {int(speed.dataset) for speed in rounds.speeds(engine, among, METHODS)},
    "partitions.stored": lambda engine, among: {int(one.dataset) for one in partitions.stored(engine, among)},
}


def test_a_read_finds_no_other_runs(engine: Engine) -> None:
    """Of four runs of methods on data sets that are called by their numbers; the third is a smoke run."""
    for number in (1, 2, 3, 4):
        partition = add_partition(engine, str(number) * 64, dataset=str(number))
        of = spec(f"m{number}", dataset=str(number))
        run = add_run(engine, of, [0.1, 0.2], partition=partition, seconds=1.0, participants=1)
        write.update_run(engine, run, environment={"scale": "smoke"} if number == 3 else {})
    for read, found in FINDING.items():
        assert found(engine, ALL) == {1, 2, 3, 4}, read
        # A partition says who holds what, which a smoke run shows as well as any other.
        assert found(engine, RunScope()) == ({1, 2, 3, 4} if read == "partitions.stored" else {1, 2, 4}), read
        assert found(engine, RunScope(frozenset({2, 3}))) == {2, 3}, f"{read}: a smoke run that is named"
        assert found(engine, RunScope(frozenset())) == set(), read
    assert runs.hidden_smoke(engine, RunScope())
    for all_or_named in (ALL, RunScope(frozenset({2}))):
        assert not runs.hidden_smoke(engine, all_or_named)


@pytest.mark.parametrize(
    ("rule", "value", "at", "used"),
    [(RoundRule("best"), 0.6, 1, 1), (RoundRule("last"), 0.4, 3, 1), (RoundRule("mean-last", 3), 0.5333333333, 3, 3)],
)
def test_a_run_counts_by_its_series_under_the_same_rule(
    engine: Engine, rule: RoundRule, value: float, at: int, used: int
) -> None:
    run = write.create_run(engine, spec("elastic"), {})
    for t, central in enumerate((0.1, 0.6, 0.6, 0.4)):
        write_round(
            engine, run, write.RoundRecord(round=t, accuracy=0.9, series={"central": (central, 1.0), "other": (0.99, 1.0)})
        )
    add_run(engine, spec("fedavg"), [0.9])
    (found,) = rounds.by_series(engine, runs.results(engine, ALL, rule), "central", rule)
    assert isinstance(found, Result)
    assert (found.id, found.round, found.used, found.best) == (run, at, used, 0.6)
    assert found.value == pytest.approx(value)


def test_evaluated_and_other_rounds_count_by_their_number_in_the_time_of_a_round(engine: Engine) -> None:
    """Of five trained rounds two are evaluated, which takes 30 s and 4 s of fine-tuning; one round was held up for an hour."""
    run = write.create_run(engine, spec(), {})
    for t, (update, evaluate) in enumerate([(0, 90), (2, None), (6, 30), (3600, None), (6, 30), (2, None)]):
        accuracy = None if evaluate is None else 0.5
        seconds = {"seconds_receive": 1.0 * (t > 0), "seconds_update": float(update), "seconds_evaluate": evaluate}
        write_round(engine, run, RoundRecord(round=t, accuracy=accuracy, participants=20 * (t > 0), **seconds))
    (speed,) = rounds.speeds(engine, ALL, ["fedavg"])
    assert speed.seconds == pytest.approx((3 * (1 + 2) + 2 * (1 + 6 + 30)) / 5)
    assert rounds.costs(engine, [run], 0.0)[run].seconds_evaluate == 30
    never = write.create_run(engine, spec(seed=1), {})
    for t, accuracy in enumerate([0.1, None]):
        write_round(engine, never, RoundRecord(round=t, accuracy=accuracy, participants=20 * t, seconds_update=2.0 * t))
    assert rounds.costs(engine, [never], 0.0)[never].seconds_evaluate is None
    assert [one.seconds for one in rounds.speeds(engine, ALL, ["fedavg"])] == [speed.seconds, 2.0]
