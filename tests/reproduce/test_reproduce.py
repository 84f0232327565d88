"""`pflbench reproduce`: which runs are needed, which of them there are, how long they take, and a result of nothing but them."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine
from support.command import Shell, parsed, rows
from support.printed_commands import of_command
from support.report_database import add_run
from support.report_database import spec as measured

from pflbench import data
from pflbench.cli.console import duration
from pflbench.errors import UserError
from pflbench.partition import make
from pflbench.report.declared import PLOTS, TABLES
from pflbench.reproduce.goal import Goal, Wanted, by_hand, goals
from pflbench.reproduce.progress import Clock, RunProgress
from pflbench.reproduce.scales import SCALES
from pflbench.run import pack as packing
from pflbench.store import database as db
from pflbench.store.rounds import speeds
from pflbench.store.runs import ALL

NAMES = [name for name, of in {**TABLES, **PLOTS}.items() if of.reproducible]


@pytest.fixture
def engine(shell: Shell, new_database: Path) -> Engine:
    return db.connect(db.to_url(shutil.copy(new_database, "pflbench.db")))


def goal(name: str, scale: str = "full", **filters: Any) -> Goal:
    (only,) = goals(name, scale, **filters)
    return only


def wanted(name: str, scale: str, seeds: str | None = None, **filters: Any) -> tuple[Wanted, ...]:
    return goal(name, scale, **filters).wanted(Path("data"), seeds)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_runs_at_every_scale_and_its_smoke_partitions_exist(name: str) -> None:
    arrays = data.load(data.parse("digits", Path("data")), Path("data"))
    most = {"full": 2000, "quick": 20, "smoke": 10}
    for scale in SCALES:
        found = goal(name, scale).planned(Path("data"), seeds="0")
        assert found
        assert len({one.spec.key for one in found}) == len(found)
        if name != "elastic" or scale != "full":  # the poster has up to 4,000 rounds
            assert max(one.spec.train.rounds for one in found) <= most[scale]
    for partition in {one.spec.partition for one in found}:
        held = make(partition, arrays.y, 10)
        assert min(len(part) for part in held.train) > 10
    assert {one.spec.data.label for one in found} == {"digits"}
    table = goal(name, "smoke").table
    if name in TABLES and name not in ("hyperparameters", "range"):
        assert table is not None
        assert {line.label for line in table.lines} == {line.label for line in goal(name, "full").table.lines}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["accuracy", "heterogeneity", "trajectory", "ala-convergence", "loss", "elastic", "ablation"])
def test_the_printed_commands_make_the_same_runs(name: str) -> None:
    found = wanted(name, "full", **({"datasets": ["mnist"]} if name == "accuracy" else {}))
    printed = [spec.key for line in by_hand(found) for spec in of_command(line)]
    assert set(printed) == {one.spec.key for one in found}
    assert len(printed) == len(found)
    assert [spec.key for spec in of_command(found[-1].command)] == [found[-1].spec.key]


def test_full_is_the_paper_s_protocol() -> None:
    found = [one.spec for one in wanted("accuracy", "full", datasets=["tiny"], methods=["fedala"])]
    assert sorted(of.seed for of in found) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert {(of.model, of.train.rounds, of.train.lr, of.train.batch_size, of.partition.clients) for of in found} == {
        ("cnn", 2000, 0.005, 10, 20), ("resnet18", 2000, 0.1, 10, 20)
    }  # fmt: skip
    assert [one.spec.seed for one in wanted("loss", "full")] == [0], "the figure draws one seed"


def test_later_rounds_keep_their_place_in_a_shorter_run() -> None:
    fedavg, fedala = wanted("trajectory", "quick")
    assert (fedala.spec.train.rounds, fedala.spec.method.hyperparameters["start_round"]) == (20, 16)  # 156 / 10
    assert (fedavg.array, fedavg.rounds) == ("trajectory_4", range(14, 21))
    assert fedavg.options["trajectory"] == "4:14-20"
    assert wanted("loss", "full")[0].rounds == range(60, 2001, 60)
    assert wanted("loss", "quick")[0].rounds == range(1, 21)
    assert {one.spec.partition.clients for one in wanted("scalability", "quick")} == {10, 20, 50, 100}


def test_filters_name_what_the_table_has() -> None:
    found = wanted("accuracy", "quick", methods=["FedAvg", "ditto"], datasets=["MNIST"], partitions=["pathological(2)"])
    assert [(one.spec.method.name, one.spec.partition.label) for one in found] == [
        ("fedavg", "Pathological(2)"), ("ditto", "Pathological(2)"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="no dataset 'digits'"):
        goal("accuracy", datasets=["digits"])
    with pytest.raises(UserError, match="Did you mean 'trajectory'") as refused:
        goal("trajectry")
    assert refused.value.hint.count("scalability") == 1


def test_the_estimate_by_hand(engine: Engine) -> None:
    """A round of `add_run` takes its seconds and 5 more for evaluation."""
    for method, dataset, seconds in (
        ("fedavg", "mnist", 2.0), ("fedala", "mnist", 3.0), ("fedavg", "cifar10", 5.0), ("ditto", "cifar10", 25.0),
    ):  # fmt: skip
        add_run(engine, measured(method, dataset=dataset), [0.1, 0.2, 0.3], seconds=seconds, participants=20)
    add_run(engine, measured("fedavg", 1), [0.1, 0.2], seconds=4.0, participants=20, status="interrupted")
    clock = Clock(speeds(engine, ALL, {"fedavg", "fedala", "ditto", "fedprox", "local"}))

    def left(method: str, done: int = 0, **of: Any) -> float | None:
        need = Wanted(measured(method, 7, rounds=100, **of), {})
        return clock.left(RunProgress(need, "interrupted" if done else "missing", round=done))

    assert left("fedala") == pytest.approx(100 * 8)
    assert left("fedala", done=75) == pytest.approx(25 * 8)
    assert left("fedavg") == pytest.approx(100 * (7 + 9) / 2)  # the median of two runs
    assert left("ditto") == pytest.approx(100 * 8 * (30 / 10))  # measured on Cifar10: three times FedAvg
    assert left("fedprox") == pytest.approx(100 * 8 * 1.99 / 1.59)  # the paper's Table 3
    assert left("fedavg", local_epochs=5) is None, "it takes longer, by how much was not measured"
    assert left("local") is None
    assert left("fedavg", dataset="tiny") is None
    assert left("fedavg", partition={"scheme": "dirichlet", "beta": 0.1, "clients": 50}) is None

    seconds = (40, 300, 7260, 10 * 3600, 90_000)
    assert [duration(value) for value in seconds] == ["40 s", "5 min", "2 h 1 min", "10 h", "1 d 1 h"]


def store(engine: Engine, of: Wanted, best: float, **more: Any) -> int:
    return add_run(engine, of.spec, [0.1, best], **more)


@pytest.mark.parametrize(("name", "place"), [("participation", "Dir(0.1)"), ("accuracy", "Pathological(10)")])
def test_scales_never_mix(name: str, place: str, engine: Engine, shell: Shell) -> None:
    """A database with runs of both scales, and another seed of the same protocol: only the scale's own are in the cell."""
    of = {"methods": ["fedavg"], "partitions": [place]}
    for scale, seed, value in (("quick", "0", 0.5), ("full", "0", 0.9), ("quick", "1", 0.7)):
        store(engine, wanted(name, scale, seed, **of)[0], value)
    command = ("reproduce", name, "-m", "fedavg", "-p", place, "--json", "-q")
    for scale, value, seeds, runs in (("quick", 50.0, "0", [1]), ("full", 90.0, "0", [2]), ("quick", 60.0, "0-1", [1, 3])):
        document = parsed(shell(*command, "--scale", scale, "--seeds", seeds))
        (record,) = document["cells"]
        assert (record["mean"], record["runs"]) == (pytest.approx(value), runs)
        assert document["notes"][0].startswith(f"Scale {scale}: ")


def test_a_small_table_from_nothing(shell: Shell) -> None:
    command = ("reproduce", "accuracy", "--scale", "smoke", "-d", "mnist", "-p", "Dir(0.1)", "-m", "fedavg", "-m", "fedala")
    ahead = parsed(shell(*command, "--dry-run", "--json"))
    assert [(one["method"], one["state"], one["seconds"]) for one in ahead["runs"]] == [
        ("fedavg", "missing", None), ("fedala", "missing", None),
    ]  # fmt: skip
    assert not Path("pflbench.db").exists(), "a list makes no database"
    done = shell(*command, "--format", "json")
    assert done.code == 0
    assert "To run: 2." in done.err
    best = dict(rows("SELECT method, 100 * MAX(accuracy) FROM run JOIN round ON run.id = run_id GROUP BY method"))
    cells = json.loads(done.out)["cells"]
    assert {cell["method"]: cell["mean"] for cell in cells} == {name: pytest.approx(value) for name, value in best.items()}
    assert len(cells) == 2
    again = shell(*command)
    assert (again.code, rows("SELECT COUNT(*) FROM run")) == (0, [(2,)])
    assert "No run is missing." in again.err
    assert "Scale smoke: the embedded digits" in again.out


def test_after_an_interruption_the_same_command_goes_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = packing.execute

    def interrupted(*arguments: Any, **options: Any) -> Iterator[Any]:
        steps = whole(*arguments, **options)
        for step in steps:
            yield step
            if step.round == 1:
                steps.throw(KeyboardInterrupt)

    command = ("reproduce", "ablation", "--scale", "smoke", "-o", "ablation.md", "-f", "markdown")
    monkeypatch.setattr(packing, "execute", interrupted)
    done = shell(*command)
    assert (done.code, "The same command " in done.err) == (130, True)
    assert rows("SELECT status FROM run") == [("interrupted",)]
    first, second = parsed(shell(*command[:4], "--dry-run", "--json"))["runs"]
    assert (first["state"], first["run"], first["round"], first["rounds"]) == ("interrupted", 1, 1, 3)
    assert first["seconds"] > 0
    assert second["state"] == "missing"
    monkeypatch.setattr(packing, "execute", whole)
    done = shell(*command)
    assert done.code == 0
    assert "run 1, fedala digits Dir(0.1) seed 0, after round 1 of 3" in done.err
    assert "resumed after round 1" in done.err
    assert rows("SELECT id, status FROM run") == [(1, "finished"), (2, "finished")]
    assert "without adaptation" in Path("ablation.md").read_text()


@pytest.mark.slow
def test_a_run_that_kept_nothing_is_made_anew_for_a_figure(shell: Shell) -> None:
    (need,) = wanted("loss", "smoke")
    plain = need.command.replace(" --save-artifacts-every 1", "")
    assert plain != need.command
    assert shell(*shlex.split(plain)[1:], "-q").code == 0
    command = ("reproduce", "loss", "--scale", "smoke")
    assert "Run anew, since what there is did not keep ala_objective" in shell(*command, "--dry-run").out
    done = shell(*command)
    assert (done.code, done.out) == (0, "loss-smoke.png\n")
    attempts = "SELECT key, attempt, status FROM run ORDER BY attempt"
    assert rows(attempts) == [(need.spec.key, attempt, "finished") for attempt in (1, 2)]
    assert "Scale smoke" in Path("loss-smoke.caption.txt").read_text()
    # A later attempt that kept nothing does not stand in the way.
    assert shell(*shlex.split(plain)[1:], "-q", "--force").code == 0
    assert shell(*command, "-q", "-o", "loss.svg").code == 0
    for caption in ("loss-smoke.caption.txt", "loss.caption.txt"):
        assert "from runs 2." in Path(caption).read_text()
    assert rows("SELECT COUNT(*) FROM run") == [(3,)]


def test_a_diverged_run_is_said_and_the_rest_is_shown(engine: Engine, shell: Shell) -> None:
    found = wanted("participation", "quick", methods=["fedavg", "ditto"])
    for one, status in zip(found, ("finished", "diverged"), strict=True):
        store(engine, one, 0.5, status=status)
    done = shell("reproduce", "participation", "--scale", "quick", "-m", "fedavg", "-m", "ditto")
    assert done.code == 2
    assert f"Diverged: run 2, {found[1].name}. Anew: {found[1].command} --force" in done.err
    assert "50.00" in done.out
    assert rows("SELECT COUNT(*) FROM run") == [(2,)]


def test_missing_data_are_named_with_their_command(engine: Engine, shell: Shell) -> None:
    told = shell.refused("reproduce", "participation", "-m", "fedavg")
    assert "Nothing of 'participation' can be run here." in told
    assert "The data of 'cifar100' are missing" in told
    assert "pflbench data download cifar100" in told
    there = wanted("ala-convergence", "full", datasets=["mnist"])[0]
    store(engine, there, 0.5)
    assert "None of the missing runs can be trained here." in shell("reproduce", "ala-convergence", "--dry-run").out
    document = parsed(shell("reproduce", "ala-convergence", "--dry-run", "--json"))
    assert "pflbench data download cifar10" in document["lacking"]["cifar10"]["hint"]
    assert "Get them (171 MB): pflbench data download cifar10" in shell("reproduce", "ala-convergence", "--dry-run").out
    without = "does not have the dataset: cinic10"
    assert f"Left out, since pflbench {without}." in shell("reproduce", "elastic", "--dry-run").out
    assert without in shell.refused("reproduce", "elastic", "-d", "cinic10")


def test_other_data_in_a_dataset_s_place_are_never_the_paper_s(engine: Engine, shell: Shell) -> None:
    np.savez("own.npz", x=np.zeros((40, 32, 32, 3), np.uint8), y=np.arange(40) % 10)
    of = {"methods": ["fedavg", "fedala"], "partitions": ["Dir(0.1)"]}
    runs = wanted("accuracy", "full", seeds="0", datasets=["Cifar10=npz:own.npz"], **of)
    assert {(one.spec.data.named, one.spec.train.lr) for one in runs} == {(f"npz:{Path('own.npz').absolute()}", 0.005)}
    assert [spec.key for spec in of_command(runs[0].command)] == [runs[0].spec.key]
    for one in runs:
        store(engine, one, 0.5)
    store(engine, wanted("accuracy", "full", seeds="0", datasets=["cifar10"], **of)[0], 0.9)
    asked = ("reproduce", "accuracy", "--seeds", "0", "-p", "Dir(0.1)", "-m", "fedavg", "-m", "fedala")
    document = parsed(shell(*asked, "-d", "cifar10=npz:own.npz", "--json", "-q"))
    values = {cell["method"]: (cell["mean"], cell["paper_mean"], cell["verdict"], cell["runs"]) for cell in document["cells"]}
    assert values == {"fedavg": (50, 59.16, "protocol differs", [1]), "fedala": (50, 90.67, "protocol differs", [2])}
    assert {tuple(cell["paper_differences"]) for cell in document["cells"]} == {("data own.npz instead of Cifar10",)}
    assert "'cifar10=' names no data" in shell.refused("reproduce", "accuracy", "-d", "cifar10=")
    assert "digits stand in for all data" in shell.refused("reproduce", "accuracy", "-d", "tiny=npz:own.npz", "--scale", "smoke")


def test_wrong_options_are_refused_before_anything_runs(shell: Shell) -> None:
    for words, told in {
        "loss --format csv": "There is no table 'loss'",
        "loss -o loss.txt": "Unknown figure format '.txt'",
        "ablation -f xml": "Unknown --format 'xml'",
        "ablation --engine none": "Unknown --engine",
        "ablation --seeds x": "is no seed",
    }.items():
        assert told in shell.refused("reproduce", *words.split(), "--scale", "smoke")
    assert not Path("pflbench.db").exists()
