"""`pflbench tune`: what is tried, by what it is chosen, and that neither names nor interruptions change that.

In most tests the runs are not trained: their accuracies are a function of their specifications.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.command import Shell, finish, parsed, rows, start, until
from support.runs import count_reached
from support.store_samples import write_round

from pflbench.cli import tune
from pflbench.errors import UserError
from pflbench.run.options import RunOptions
from pflbench.spec import RunSpec
from pflbench.store import runs, studies, write
from pflbench.store.database import connect, to_url
from pflbench.store.write import RoundRecord
from pflbench.sweep.tuning import define, grid, rungs

TWIN = """
from pflbench.methods.base import method
from pflbench.methods.ditto import Ditto

@method
class Twin(Ditto):
    title = "Twin"
"""
SMALL = ("-d", "digits", "--clients", "3", "-r", "2", "--batch-size", "100", "--val-share", "0.2", "-q")
LAMS = ("--search", "ditto.lam=0.01,0.1,1,10")
WANTED = RunOptions(methods=("ditto", "fedrep", "local"), datasets=("digits",), rounds=60, val_share=0.1)
Objective = Callable[[RunSpec], tuple[float, float]]


class Killed(BaseException):
    """As kill -9, the process has no time to write anything."""


def validation_prefers_small_lam(spec: RunSpec) -> tuple[float, float]:
    """Validation and test accuracy: the test data prefer a large lambda."""
    lam = spec.method.hyperparameters.get("lam", 1.0)
    assert isinstance(lam, (int, float))
    return 1 / (1 + lam), lam / (1 + lam)


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs that have ended as soon as they are begun. untrained.made: their specifications. untrained.left: runs until a kill."""

    class Untrained:
        objective: Objective = staticmethod(validation_prefers_small_lam)
        left = 10_000
        status = "finished"

        def __init__(self) -> None:
            self.made: list[RunSpec] = []

        def train(self, asked: Any, ahead: Sequence[RunSpec], keep_going: bool) -> str:
            for spec in ahead:
                if not self.left:
                    raise Killed
                self.left -= 1
                self.made.append(spec)
                validation, test = self.objective(spec)
                run = write.create_run(asked.results, spec, {})
                later = [(validation, test)] * spec.train.rounds
                for t, (own, other) in enumerate([(validation / 2, min(1.0, test + 0.05)), *later]):
                    write_round(asked.results, run, RoundRecord(round=t, accuracy=other, val_accuracy=own))
                write.update_run(asked.results, run, status=self.status if spec.train.lr > 1 else "finished")
            return ""

    made = Untrained()
    monkeypatch.setattr(tune, "train", made.train)
    return made


def values(spec: RunSpec) -> tuple[Any, ...]:
    return spec.method.name, spec.method.hyperparameters.get("lam"), spec.train.lr, spec.train.rounds, spec.seed


def table(shell: Shell, *more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parsed(shell("table", "tuned", "--json", *more))["cells"]
    return found


def test_the_grid_is_the_product_in_an_order_that_names_do_not_change() -> None:
    space = {"ditto.lam": [0.01, 0.1, 1], "ditto.personal_epochs": [1, 2], "lr": [0.1, 0.2]}
    points = grid(space)
    assert sorted(tuple(point.values()) for point in points) == sorted(product(*space.values()))
    assert points != [dict(zip(space, point, strict=True)) for point in product(*space.values())], "it is mixed"
    twin = grid({name.replace("ditto", "twin"): of for name, of in space.items()})
    assert [tuple(point.values()) for point in twin] == [tuple(point.values()) for point in points]
    assert grid({}) == [{}]


def test_the_papers_ranges_and_the_same_budget_for_all() -> None:
    planned = define(WANTED, [], "grid", 12, 1)
    assert planned.space("fedrep") == {"fedrep.tau": list(range(1, 11))}
    assert [record["settings"] for record in planned.records()] == [60, 10, 1]
    assert planned.definition["rounds_in_all"] == 12 * 60
    new = planned.next_trials(studies.StoredStudy("s", planned.definition, {}, {}), {}, 1)
    assert {method: len(trials) for method, trials in new.items()} == {"ditto": 12, "fedrep": 10, "local": 1}
    assert all(len({trial.keys for trial in trials}) == len(trials) for trials in new.values())
    assert [trial.values for trial in new["ditto"]] == grid(planned.space("ditto"))[:12]
    searched = define(WANTED, ["lr=0.05,0.1", "fedrep.tau=1,2,2"], "grid", 12, 1)
    assert [record["settings"] for record in searched.records()] == [120, 4, 2]


def test_values_of_a_paper_that_are_not_possible_here_are_left_out(shell: Shell, untrained: Any) -> None:
    """The MLP has two blocks for FedALA's p; pFedMe's w diverges from lr * lam = 2 on, also where both are searched."""
    done = shell("tune", "s", "-m", "fedala", "-m", "pfedme", *SMALL, "--trials", "40")
    assert done.code == 0, done
    assert "Not searched: fedala.p = 3, 4, 5, 6. fedala on digits" in done.err
    assert "Not searched: pfedme.lam = 20, 50. pFedMe with lr * lam = 2" in done.err
    assert {spec.method.hyperparameters["p"] for spec in untrained.made if spec.method.name == "fedala"} == {1, 2}
    assert "of this model 2 blocks" in shell.refused("tune", "t", "-m", "fedala", *SMALL, "--search", "fedala.p=1,3")
    both = ("--search", "lr=0.01,0.12", "--search", "pfedme.lam=1,18")
    assert shell("tune", "t", "-m", "pfedme", *SMALL, *both).code == 0
    tried = {(spec.train.lr, spec.method.hyperparameters["lam"]) for spec in untrained.made if spec.method.name == "pfedme"}
    assert {(0.01, 1), (0.01, 18), (0.12, 1)} <= tried
    assert (0.12, 18) not in tried


def test_an_interval_has_the_type_of_its_hyperparameter() -> None:
    planned = define(WANTED, ["ditto.lam=0..2", "fedrep.tau=1..9"], "random", 12, 1)
    new = planned.next_trials(studies.StoredStudy("s", planned.definition, {}, {}), {}, 1)
    assert len({trial.values["ditto.lam"] for trial in new["ditto"]}) == 12
    assert {type(trial.values["fedrep.tau"]) for trial in new["fedrep"]} == {int}
    with pytest.raises(UserError, match=r"fedrep\.tau takes whole numbers"):
        define(WANTED, ["fedrep.tau=1.0..9"], "random", 12, 1)


def test_successive_halving_spends_the_rounds_that_are_written_down(shell: Shell, untrained: Any) -> None:
    assert rungs(12, 60) == [(12, 6), (4, 20), (1, 60)]
    assert rungs(27, 9) == [(27, 1), (9, 3), (3, 9)]
    assert (rungs(2, 60), rungs(12, 2)) == ([(2, 60)], [(12, 2)])
    more = ("-m", "ditto", "--search", "ditto.lam=1..9", "--sampler", "halving", "--trials", "9", *SMALL, "-r", "18")
    assert shell("tune", "s", *more).code == 0
    found = [values(spec) for spec in untrained.made if spec.seed == 0]
    assert Counter(rounds for *_, rounds, _ in found) == {2: 9, 6: 3, 18: 1}
    first = sorted(lam for _, lam, _, rounds, _ in found if rounds == 2)
    assert sorted(lam for _, lam, _, rounds, _ in found if rounds == 6) == first[:3]
    (row,) = table(shell)
    assert (row["winner"], row["rounds"]) == ({"lam": first[0]}, 9 * 2 + 3 * 6 + 18)
    assert "9 trials by successive halving, 54 rounds, at most 18 each" in shell("table", "tuned").out


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_suggestions_survive_an_interruption(shell: Shell, untrained: Any, sampler: str) -> None:
    """The same after a kill -9 at any point, and no finished trial is trained again; the same under another name."""
    Path("twin.py").write_text(TWIN)
    more = ("-m", "ditto", "-m", "twin", "--plugin", "twin.py", "--search", "lr=0.01,0.1,1", "--trials", "7", *SMALL)
    more += ("--search", "ditto.lam=0.001..10", "--search", "twin.lam=0.001..10", "--sampler", sampler)
    assert shell("tune", "s", *more, "--db", "whole.db").code == 0
    whole = [values(spec) for spec in untrained.made]
    ditto, twin = ([rest for name, *rest, seed in whole if name == method and seed == 0] for method in ("ditto", "twin"))
    assert len(ditto) == 7
    assert ditto == twin
    untrained.made.clear()
    for _ in range(100):
        untrained.left = 2
        try:
            assert shell("tune", "s", *more).code == 0
            break
        except Killed:
            pass
    assert [values(spec) for spec in untrained.made] == whole
    assert table(shell) == table(shell, "--db", "whole.db")


def test_tpe_finds_what_random_draws_miss(shell: Shell, untrained: Any) -> None:
    untrained.objective = lambda spec: (1 / (1 + 100 * abs(spec.train.lr - 0.3)), 0.5)
    best = {}
    for sampler in ("random", "tpe"):
        more = ("-m", "fedavg", "--search", "lr=0.001..1", "--sampler", sampler, "--trials", "40", *SMALL)
        assert shell("tune", sampler, *more).code == 0
        (row,) = table(shell, "--study", sampler)
        best[sampler] = abs(row["winner"]["lr"] - 0.3)
    assert best["tpe"] < best["random"]


def test_validation_alone_chooses_and_best_uses_it(shell: Shell, untrained: Any) -> None:
    assert shell("tune", "s", "-m", "ditto", "-m", "fedavg", *LAMS, *SMALL).code == 0
    assert Counter(seed for *_, seed in map(values, untrained.made)) == {0: 4 + 1, 1: 3, 2: 3, 3: 3}
    ditto, fedavg = table(shell)
    assert (ditto["winner"], fedavg["winner"]) == ({"lam": 0.01}, {})
    assert ditto["test"] == pytest.approx([100 * 0.01 / 1.01] * 3), "at the round that is best in validation"
    assert ditto["default"] == pytest.approx([100 * 0.1 / 1.1] * 3)
    assert (ditto["trials"], ditto["rounds"], fedavg["trials"], fedavg["rounds"]) == (4, 8, 1, 2)
    told = shell("table", "tuned").out
    assert "each method had up to 12 trials of 2 rounds each (grid, seed 0)" in told
    assert "FedAvg has nothing to search" in told
    assert "Ditto: 4 trials; there are no more settings." in told
    study = ("--params", "best:s", *SMALL)
    (spec,) = [one["spec"] for one in parsed(shell("run", "-m", "ditto", *study, "--dry-run", "--json"))]
    assert spec["method"]["hyperparameters"]["lam"] == 0.01
    assert "decides ditto.lam" in shell.refused("run", "-m", "ditto", "--set", "ditto.lam=1", *study)
    assert "has not tuned fedrep" in shell.refused("run", "-m", "fedrep", *study)
    assert "no study 't'" in shell.refused("run", "-m", "ditto", "--params", "best:t")
    assert "expected best:STUDY" in shell.refused("run", "-m", "ditto", "--params", "s")


def test_the_best_settings_are_run_again_and_diverged_ones_are_the_worst(shell: Shell, untrained: Any) -> None:
    """With seed 0 the rate 0.5 is best, with the fresh seeds 0.1; 2 diverges."""
    untrained.status = "diverged"

    def objective(spec: RunSpec) -> tuple[float, float]:
        if spec.seed == 0:
            return (0.9 if spec.train.lr in (0.5, 2) else 0.8), 0
        return 1 - spec.train.lr / 4, 0

    untrained.objective = objective
    more = ("-m", "fedavg", "--search", "lr=0.1,0.5,2", "--best", "2", "--seeds", "7,9", *SMALL)
    assert shell("tune", "s", *more).code == 0
    assert Counter(spec.train.lr for spec in untrained.made if spec.seed in (7, 9)) == {0.5: 2, 0.1: 2}, "0.1 is the default, too"
    (row,) = table(shell)
    assert row["winner"] == {"lr": 0.1}


def test_a_later_attempt_that_failed_does_not_count(shell: Shell, untrained: Any) -> None:
    assert shell("tune", "s", "-m", "ditto", *LAMS, *SMALL, "--db", "tuned.db").code == 0
    before = table(shell, "--db", "tuned.db")
    engine = connect(to_url("tuned.db"))
    write.update_run(engine, write.create_run(engine, untrained.made[-1], {}), status="failed")
    assert table(shell, "--db", "tuned.db") == before


def test_tables_name_the_study_and_mixed_budgets(shell: Shell, untrained: Any) -> None:
    assert shell("tune", "s", "-m", "ditto", *LAMS, *SMALL).code == 0
    told = shell("table", "accuracy").out
    assert "Tuned: Ditto (lam=0.01) by study s (12 trials of 2 rounds each)." in told
    assert "Rows with different budgets of tuning stand beside each other; not tuned: Ditto." in told
    assert "Not counted: 2 trials of the study s" in told
    assert "different budgets" not in shell("table", "accuracy", "--where", "ditto.lam=0.01").out
    assert shell("tune", "t", "-m", "fedavg", "--search", "lr=0.2,0.3", "--trials", "2", *SMALL).code == 0
    assert "The studies have different budgets" in shell("table", "tuned").out
    assert "different budgets" not in shell("table", "tuned", "--study", "t").out
    assert "Tuned: FedAvg by study t (2 trials of 2 rounds each)." in shell("table", "accuracy", "-m", "fedavg").out


def test_an_import_brings_studies_so_that_trials_are_no_results(shell: Shell, untrained: Any) -> None:
    def imported(*more: str) -> dict[str, Any]:
        (result,) = parsed(shell("import", "other.db", "--json", *more))
        return dict(result)

    study = ("-m", "ditto", *LAMS, *SMALL)
    untrained.left = 3
    with pytest.raises(Killed):
        shell("tune", "s", *study, "--db", "other.db")
    assert imported("--dry-run")["studies"] == ["s"]
    assert imported()["studies"] == ["s"]
    untrained.left = 100
    assert shell("tune", "s", *study, "--db", "other.db").code == 0
    assert "study of tune: s" in shell("import", "other.db").out, "it has got further"
    assert imported()["studies"] == [] == imported("--dry-run")["studies"]
    assert "Not counted: 2 trials of the study s" in shell("table", "accuracy").out
    assert table(shell) == table(shell, "--db", "other.db")
    assert shell("run", "-m", "ditto", "--params", "best:s", *SMALL, "--dry-run").code == 0


def test_an_imported_study_whose_name_is_taken_gets_a_number(shell: Shell, untrained: Any) -> None:
    assert shell("tune", "s", "-m", "ditto", *LAMS, *SMALL, "--db", "other.db").code == 0
    assert shell("tune", "s", "-m", "fedavg", "--search", "lr=0.2,0.3", *SMALL).code == 0
    for again in (["s-2"], []):
        assert parsed(shell("import", "other.db", "--json"))[0]["studies"] == again
    assert [row["method"] for row in table(shell, "--study", "s-2")] == ["ditto"]
    assert [row["method"] for row in table(shell, "--study", "s")] == ["fedavg"]


def test_refusals(shell: Shell, untrained: Any) -> None:
    def refused(*words: str) -> str:
        return shell.refused("tune", "s", "-m", "ditto", "-d", "digits", *words)

    assert "no validation data are set aside" in refused("-r", "2")
    for more, told in {
        ("--search", "lam=1"): "Unknown option of --search",
        ("--search", "ditto.lam=-1,1"): "must be at least 0",
        ("--search", "ditto.foo=1"): "Unknown hyperparameter",
        ("--search", "fedavg.x=1"): "fedavg is not run by this command",
        ("--search", "lr=0.1..1"): "A grid needs values",
        ("--search", "lr=1..0.1", "--sampler", "tpe"): "is no interval",
        ("--search", "lr=0.1,1", "--lr", "1"): "--lr is given and searched",
        ("--search", "ditto.lam=1,2", "--set", "ditto.lam=1"): "is given by --set and searched",
        ("--set", "ditto.lam=1,2"): "`tune --search ditto.lam=1,2` searches them.",
        ("--seeds", "0-2"): "has seed 0, which the search uses",
        ("-d", "mnist"): "A study has one dataset",
        ("--sampler", "best"): "Unknown --sampler",
    }.items():
        assert told in refused("--val-share", "0.2", *more), more
    assert not Path("pflbench.db").exists()
    assert "No results yet" in shell.refused("table", "tuned")
    assert shell("db", "upgrade").code == 0
    assert shell("run", "-m", "fedavg", *SMALL).code == 0
    assert "There is no study in this database" in shell.refused("table", "tuned")
    password = ("--checkpoints", "s3://me:secret@bucket/x")
    assert "A password in the URL" in shell.refused("tune", "s", "-m", "ditto", *LAMS, *SMALL, *password)
    assert b"secret" not in Path("pflbench.db").read_bytes()
    assert shell("tune", "s", "-m", "ditto", *LAMS, *SMALL).code == 0
    assert "was begun with trials 12" in shell.refused("tune", "s", "-m", "ditto", *LAMS, *SMALL, "--trials", "13")
    assert "is a study" in shell.refused("sweep", "-m", "ditto", "--name", "s", *SMALL)


@pytest.mark.slow
def test_one_method_under_two_names_ties(shell: Shell) -> None:
    """With trained runs: the same trials, winner and accuracies, to the last bit."""
    Path("twin.py").write_text(TWIN)
    more = ("-m", "ditto", "-m", "twin", "--plugin", "twin.py", "--search", "ditto.lam=0.01,10", "--search", "twin.lam=0.01,10")
    assert shell("tune", "s", *more, "--trials", "2", "--seeds", "4", *SMALL).code == 0
    ditto, twin = table(shell)
    same = ("winner", "trials", "rounds", "validation", "test", "default")
    assert [ditto[name] for name in same] == [twin[name] for name in same]
    assert 10 < ditto["test"][0] < 100
    made = rows("SELECT count(*) FROM run")
    assert shell("tune", "s", *more, "--trials", "2", "--seeds", "4", *SMALL).code == 0
    assert rows("SELECT count(*) FROM run") == made
    (note,) = [line for line in shell("table", "accuracy", "--round-rule", "val").out.splitlines() if line.startswith("Tuned: ")]
    assert note.count("by study s (2 trials of 2 rounds each)") == 1
    assert shell("run", "-m", "ditto", "--params", "best:s", *SMALL, "--val-share", "0").code == 0
    (recorded,) = rows("SELECT environment -> 'studies' FROM run ORDER BY id DESC LIMIT 1")
    assert json.loads(recorded[0]) == {"s": {"sampler": "grid", "trials": 2, "rounds": 2, "rounds_in_all": 4}}


@pytest.mark.slow
def test_kill_9_loses_no_finished_trial(shell: Shell, tmp_path: Path) -> None:
    more = ("-m", "fedavg", "--search", "lr=0.01,0.05,0.2", "--seeds", "4", "-j", "1", *SMALL, "-r", "20")
    url = str(tmp_path / "pflbench.db")
    process = start("tune", "s", *more, folder=tmp_path)
    until(lambda: count_reached(url, 20) >= 1)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    before = set(rows("SELECT id, key, started_at FROM run WHERE status = 'finished'"))
    done = shell("tune", "s", *more)
    assert done.code == 0, done.err
    engine = connect(to_url(url))
    assert len(runs.stored(engine, runs.ALL)) == len({key for (key,) in rows("SELECT key FROM run")}) == 3 + 1 + 1
    engine.dispose()
    assert before <= set(rows("SELECT id, key, started_at FROM run"))
    assert table(shell)[0]["trials"] == 3
