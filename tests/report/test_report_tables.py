"""The papers' tables: what they need, what belongs into which cell, differences and verdicts worked out by hand."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from sqlalchemy import Engine
from support.command import ROOT
from support.printed_commands import of_command
from support.report_database import add_run, spec
from support.store_samples import write_round

from pflbench import data, methods, models
from pflbench.engine.flat import Flat
from pflbench.errors import UserError
from pflbench.report import paper
from pflbench.report.declared import TABLES
from pflbench.report.needed import Planned
from pflbench.report.selection import Filters
from pflbench.report.tables import cell
from pflbench.report.tables.accuracy import AccuracyTable
from pflbench.report.tables.grid import render
from pflbench.report.tables.places import BLOCKS, AccuracyColumn
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.spec import RunSpec
from pflbench.store.runs import RoundRule
from pflbench.store.write import RoundRecord, create_run, update_run

DECLARED = {name: table.needs for name, table in TABLES.items() if table.reproducible and name not in ("ranks", "table2")}
SHOWN = [name for name in DECLARED if name not in ("accuracy", "overhead", "new-clients")]
EVERY = [planned for table in DECLARED.values() for planned in table.needed]


def planned(name: str, method: str, **of: Any) -> Planned:
    """The first cell of a table for a method, whose place and hyperparameters have these values."""
    for found in DECLARED[name].needed:
        have = {**vars(found.place), **dict(found.line.varied)}
        if found.line.method == method and all(have[key] == value for key, value in of.items()):
            return found
    raise AssertionError(f"{name} has no {method} with {of}")


def specs(of: Planned, seeds: int = 1, **train: Any) -> list[RunSpec]:
    return plan(RunOptions(**{**of.options, **train}, seeds=f"0-{seeds - 1}"))


def add(engine: Engine, of: Planned, *accuracies: float, **train: Any) -> list[int]:
    """A run per accuracy (in percent), with seeds 0, 1, ..., under the paper's protocol but for `train`."""
    found = specs(of, len(accuracies), **train)
    return [add_run(engine, one, [0.01, value / 100]) for one, value in zip(found, accuracies, strict=True)]


def part(table: AccuracyTable, title: str) -> AccuracyColumn:
    (found,) = [part for part in table.columns if part.title == title]
    return found


def verdict(table: AccuracyTable, row: str, column: int = 0) -> str | None:
    return table.columns[column].verdicts[[line.label for line in table.rows].index(row)]


def test_no_printed_accuracy_is_left_over() -> None:
    """Each row of the files is a cell of some table; s = 80, p = 1 of Table 6 and Table 1 are Table 2's once more."""
    shown = {(p.line.method, p.place, p.reference.mean) for table in DECLARED.values() for p in table.cells if p.reference}
    # The leaderboard has two methods that pflbench does not have, and two values for some cells, of which the first counts.
    known = [r for r in paper.references() if r.method not in ("FedDistill", "FedGen")]
    first: dict[tuple[object, ...], paper.PrintedValue] = {}
    for r in known:
        first.setdefault((r.method, r.place, r.mean if r.table != paper.LEADERBOARD else None), r)
    assert {(r.method, r.place, r.mean) for r in first.values()} == shown
    accuracies = [
        row
        for file in sorted((ROOT / "pflbench" / "papers").glob("*.csv"))
        for row in csv.DictReader(file.open(encoding="utf-8"))
        if row["metric"] == "test_accuracy_percent"
    ]
    assert len(accuracies) == len(paper.references())


@pytest.mark.parametrize("name", list(DECLARED))
def test_the_command_of_each_cell_makes_the_run_that_belongs_there(name: str) -> None:
    """Read by the command line itself; of the poster, whose partitions nobody knows, only that remains as a difference."""
    for of in DECLARED[name].needed:
        if not of.known or of.line.method.removesuffix("+ala") not in methods.METHODS:
            continue
        (made,) = of_command(of.command)
        assert [made] == specs(of)
        plain = made.model_dump(mode="json")
        assert paper.is_at(plain, of.place)
        unknown = ("partition pathological instead of unknown",) if of.place.central else ()
        assert paper.differences(plain, RoundRule("best"), of.place, of.line.varied) == unknown, of.command
        assert of.reference is None or dict(of.line.varied).items() <= made.method.hyperparameters.items()


def test_difference_and_verdict_by_hand(engine: Engine) -> None:
    """Tiny-ImageNet, Dir(0.5): FedAvg 21.14 ± 0.47, so 3 std are 1.41; FedRep 16.74 ± 0.09: 1 point; FedALA 27.85."""
    add(engine, planned("heterogeneity", "fedavg", partition=("dirichlet", 0.5)), 22.0, 23.08)  # + 1.40
    add(engine, planned("heterogeneity", "fedrep", partition=("dirichlet", 0.5)), 15.73)  # - 1.01
    add(engine, planned("heterogeneity", "ditto", partition=("dirichlet", 0.5)), 19.97)  # + 0.99
    add(engine, planned("heterogeneity", "fedprox", partition=("dirichlet", 0.5)), 21.22, rounds=20)
    without = TABLES["heterogeneity"].load()(engine, Filters(datasets=["tiny"], partitions=["Dir(0.5)"]))
    assert (verdict(without, "FedAvg"), verdict(without, "FedRep")) == ("open", "differs")
    add(engine, planned("heterogeneity", "fedala", partition=("dirichlet", 0.5)), 27.5)
    table = TABLES["heterogeneity"].load()(engine, Filters(datasets=["tiny"], partitions=["Dir(0.5)"]))
    main = part(table, "Tiny-ImageNet, Dir(0.5), 2000 rounds")
    own = main.cells[[line.label for line in table.rows].index("FedAvg")]
    assert own is not None
    assert own.difference == pytest.approx(1.40)
    judged = dict(zip([line.label for line in table.rows], main.verdicts, strict=True))
    assert judged == {line.label: "not run" for line in table.rows} | {
        "FedAvg": "reproduced", "FedRep": "differs", "Ditto": "reproduced", "FedALA": "reproduced",
    }  # fmt: skip
    short = part(table, "Tiny-ImageNet, Dir(0.5), 20 rounds")
    assert dict(zip([line.label for line in table.rows], short.verdicts, strict=True))["FedProx"] == "protocol differs"
    assert "† protocol differs (Tiny-ImageNet, Dir(0.5), 20 rounds): rounds 20 instead of 2000." in table.notes


def reference(mean: float, std: float | None = None) -> paper.PrintedValue:
    return paper.PrintedValue("Table 2", DECLARED["accuracy"].places[0], "fedavg", mean, std)


def a_cell(mean: float, of: paper.PrintedValue | None, *differences: str) -> cell.Cell:
    return cell.Cell(mean, 0, (1,), (0,), (mean,), (1,), {}, of, differences, 1)


@pytest.mark.parametrize(
    ("ours", "theirs", "fedala", "expected"),
    [
        (90.0, (91.0, 0.1), (95.0, 94.0), "reproduced"),  # exactly a point
        (89.99, (91.0, 0.1), (95.0, 94.0), "differs"),
        (89.5, (91.0, 0.5), (95.0, 94.0), "reproduced"),  # exactly 3 std
        (90.0, (91.0, None), (95.0, 94.0), "reproduced"),
        (94.9, (94.5, 0.1), (94.8, 94.6), "differs"),  # FedALA above it in the paper, below it here
        (94.9, (94.5, 0.1), (94.901, 94.6), "reproduced"),  # alike in print: not reversed
        (94.9, (94.7, 0.1), (94.8, 94.6), "reproduced"),  # below it in both
        (94.9, (94.5, 0.1), None, "open"),
    ],
)
def test_the_rule_of_the_specification(
    ours: float, theirs: tuple[float, float | None], fedala: tuple[float, float] | None, expected: str
) -> None:
    """methods.md 6: |difference| <= max(1.0 point, 3 std), and the ranking of FedALA against it is kept."""
    leader = a_cell(fedala[0], reference(fedala[1])) if fedala else None
    assert cell.judge(a_cell(ours, reference(*theirs)), leader) == expected


def test_what_cannot_be_judged() -> None:
    assert cell.judge(None, None) == "not run"
    assert cell.judge(a_cell(90, reference(91), "rounds 20 instead of 2000"), None) == "protocol differs"
    assert cell.judge(a_cell(90, None), None) is None
    assert cell.judge(a_cell(90, reference(90)), None, ranked=False) == "reproduced"
    assert cell.judge(a_cell(90, reference(90)), a_cell(95, reference(95), "lr 1 instead of 2")) == "open"


def test_improvement_is_against_the_same_method_in_the_same_setting(engine: Engine) -> None:
    add(engine, planned("applicability", "ditto"), 32.0, 33.0)
    add(engine, planned("applicability", "ditto+ala"), 40.0, 41.0, 42.0)
    add(engine, planned("applicability", "fedamp"), 28.0)
    add(engine, planned("applicability", "fedamp+ala"), 28.5)  # start and xi_clip are ALA's to decide
    add(engine, planned("applicability", "fedrep+ala"), 38.0)
    add(engine, planned("applicability", "fedrep"), 35.0, rounds=10)  # another protocol
    add(engine, planned("applicability", "fedprox+ala"), 40.0)
    (other,) = plan(RunOptions(**planned("applicability", "fedprox").options, settings=("fedprox.mu=0.1",)))
    add_run(engine, other, [0.2])  # other hyperparameters
    table = TABLES["applicability"].load()(engine, Filters(datasets=["tiny"]))
    gains = dict(zip([line.method for line in table.rows], table.columns[0].extra["improvement"], strict=True))
    assert gains["ditto+ala"] == pytest.approx(41.0 - 32.5)
    assert gains["fedamp+ala"] == pytest.approx(0.5)
    assert (gains["fedrep+ala"], gains["fedprox+ala"], gains["fedavg+ala"]) == (None, None, None)
    rows = {row["method"]: row for row in json.loads(render(table.grid(), "json"))["cells"]}
    assert (rows["ditto+ala"]["improvement"], rows["ditto+ala"]["paper_improvement"]) == (pytest.approx(8.5), 8.60)


@pytest.mark.parametrize(
    ("model", "dataset", "shape", "classes", "vocabulary"),
    [
        ("cnn", "tiny", (3, 64, 64), 200, None),
        ("resnet18", "tiny", (3, 64, 64), 200, None),
        ("fasttext", "agnews", (200,), 4, 98_635),
    ],
)
def test_weights_are_those_of_the_models_blocks(
    model: str, dataset: str, shape: tuple[int, ...], classes: int, vocabulary: int | None
) -> None:
    sizes = [block.stop - block.start for block in Flat(models.build(model, shape, classes, vocabulary)).blocks]
    assert BLOCKS[dataset, model] == tuple(sizes)
    covered = [value for value in paper.named_values() if (value.table, value.backbone) == ("table5", model)]
    for p in range(1, len(sizes) + 1):
        lowest_first = [value.metric.removeprefix("ala_range_covers:") for value in covered if value.setting["p"] == str(p)]
        assert lowest_first == [*reversed(models.MODELS[model].blocks[:p])]
    assert len(sizes) == max(int(value.setting["p"]) for value in covered)


def test_runs_of_other_client_numbers_do_not_belong_to_scalability(engine: Engine) -> None:
    add(engine, planned("accuracy", "fedala", dataset="cifar100", partition=("dirichlet", 0.1)), 55.0)
    with pytest.raises(UserError, match=r"Nothing of the table 'scalability'(.|\n)*--clients 50"):
        TABLES["scalability"].load()(engine)
    add(engine, planned("scalability", "fedala", clients=100), 54.0)
    add(engine, planned("participation", "fedala"), 56.0)
    scaled = TABLES["scalability"].load()(engine)
    assert [(p.title, [c.mean for c in p.cells if c]) for p in scaled.columns] == [
        ("Cifar100, Dir(0.1), 50 clients, join ratio 1", []),
        ("Cifar100, Dir(0.1), 100 clients, join ratio 1", [54.0]),
    ]
    joined = TABLES["participation"].load()(engine)
    assert [c.mean for c in joined.columns[0].cells if c] == [pytest.approx(56)]
    assert "fedamp" not in [line.method for line in joined.rows]


def test_the_elastic_table_counts_the_central_test_set(engine: Engine) -> None:
    for method, central in (("fedavg", (0.1, 0.70, 0.69)), ("elastic", (0.1, 0.72, 0.74))):
        (one,) = specs(planned("elastic", method, dataset="mnist"))
        run = create_run(engine, one, {})
        update_run(engine, run, status="finished")
        for t, value in enumerate(central):
            write_round(engine, run, RoundRecord(round=t, accuracy=0.99, series={"central": (value, 1.0)}))
    add_run(engine, spec("fedavg", model="logreg"), [0.5])
    table = TABLES["elastic"].load()(engine, Filters(datasets=["mnist"]))
    assert [c and c.mean for c in table.columns[0].cells] == [70.0, 74.0]
    assert table.columns[0].verdicts == ("protocol differs",) * 2
    assert "† protocol differs (MNIST): partition pathological instead of unknown." in table.notes
    assert "Not counted: 1 run without a central test set (`--central-test`)." in table.notes
    last = TABLES["elastic"].load()(engine, Filters(datasets=["mnist"]), round_rule="last")
    assert [c and c.mean for c in last.columns[0].cells] == [69.0, 74.0]
    assert "pflbench does not have the dataset cinic10." in TABLES["elastic"].load()(engine).notes


def test_partitions_that_a_paper_does_not_name_are_told_apart(engine: Engine) -> None:
    for classes in (2, 5):
        (one,) = specs(planned("elastic", "fedavg", dataset="mnist"), partition="pathological", classes_per_client=classes)
        write_round(engine, add_run(engine, one, []), RoundRecord(round=0, accuracy=0.5, series={"central": (0.5, 1.0)}))
    table = TABLES["elastic"].load()(engine, Filters(datasets=["mnist"]))
    assert [column.title for column in table.columns] == ["MNIST, Pathological(2)", "MNIST, Pathological(5)"]


def test_of_several_sets_of_hyperparameters_the_papers_is_shown(engine: Engine) -> None:
    of = planned("heterogeneity", "ditto", dataset="agnews")
    (other,) = plan(RunOptions(**of.options, settings=("ditto.lam=1",)))
    add_run(engine, other, [0.5])
    alone = TABLES["heterogeneity"].load()(engine, Filters(datasets=["agnews"]))
    assert verdict(alone, "Ditto") == "protocol differs"
    assert any(note.endswith("lam 1 instead of 0.1.") for note in alone.notes)
    add(engine, of, 92.0)
    table = TABLES["heterogeneity"].load()(engine, Filters(datasets=["agnews"]))
    assert [c.mean for c in table.columns[0].cells if c] == [92.0]


def test_the_table_says_what_was_not_run_and_how_to_run_it(engine: Engine) -> None:
    with pytest.raises(
        UserError, match=r"was run yet(.|\n)*pflbench run -m fedavg -d tiny --model cnn --beta 0.01 --clients 20$"
    ):
        TABLES["heterogeneity"].load()(engine)
    add(engine, planned("heterogeneity", "fedavg"), 15.0)
    table = TABLES["heterogeneity"].load()(engine)
    assert (
        "Not run: 41 of 42 cells; next: "
        + planned("heterogeneity", "fedavg", dataset="tiny").command.replace("0.01", "0.5")
        + "."
        in table.notes
    )
    assert len(table.columns) == 3, "settings that were not run are shown, too"
    assert len(list(csv.DictReader(io.StringIO(render(table.grid(), "csv"))))) == 42
    with pytest.raises(UserError, match=r"no method 'local'(.|\n)*fedavg"):
        TABLES["heterogeneity"].load()(engine, Filters(methods=["local"]))
    with pytest.raises(UserError, match="no dataset 'mnist'"):
        TABLES["heterogeneity"].load()(engine, Filters(datasets=["mnist"]))


def test_datasets_of_the_papers_are_known_but_for_one() -> None:
    assert {p.place.dataset for p in EVERY if not p.known} == {"cinic10"}
    assert {p.place.dataset.partition(":")[0] for p in EVERY if p.known} <= set(data.DATASETS)
