"""`table accuracy`: numbers computed by hand, and what may and may not stand together."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from sqlalchemy import Engine
from support.report_database import HYPERPARAMETERS, add_partition, add_run, spec

from pflbench import methods
from pflbench.errors import UserError
from pflbench.report import paper
from pflbench.report.selection import Filters
from pflbench.report.tables.accuracy import AccuracyTable, build
from pflbench.report.tables.cell import Cell
from pflbench.spec import RunSpec
from pflbench.store import locks
from pflbench.store.runs import RoundRule

SHORT: dict[str, Any] = {"rounds": 20}


def cell(table: AccuracyTable, row: str, head: str = "MNIST, Dir(0.1)") -> Cell:
    i = [r.label for r in table.rows].index(row)
    j = [column.title for column in table.columns].index(head)
    found = table.columns[j].cells[i]
    assert found is not None
    return found


def match(of: RunSpec, rule: Literal["best", "last"] = "best") -> tuple[paper.PrintedValue, tuple[str, ...]]:
    """The paper's value for a run, and what differs."""
    found = paper.find(of.model_dump(mode="json"), RoundRule(rule))
    assert found is not None
    return found


def add_seeds(engine: Engine, values: list[float], *args: Any, **fields: Any) -> list[int]:
    """One run per value, whose best round (the second of three) has it."""
    return [add_run(engine, spec(*args, seed=k, **fields), [0.0, v, v - 0.1]) for k, v in enumerate(values)]


def test_every_cell_by_hand(engine: Engine) -> None:
    add_seeds(engine, [0.90, 0.92], "fedavg")
    add_seeds(engine, [0.95, 0.99], "ditto")
    add_seeds(engine, [0.60], "fedavg", dataset="cifar10", lr=0.005)
    add_seeds(engine, [0.50, 0.52, 0.60], "ditto", dataset="cifar10", lr=0.005)
    for rule, less in (("best", 0), ("last", 10), ("mean-last:2", 5)):
        table = build(engine, round_rule=rule)
        assert [s.head for s in table.columns] == [("MNIST", "Dir(0.1)"), ("Cifar10", "Dir(0.1)")]
        assert [r.label for r in table.rows] == ["FedAvg", "Ditto"]
        shown = [
            [(round(c.mean, 9), round(c.std, 9), c.n, c.best) for c in row if c]
            for row in zip(*(column.cells for column in table.columns), strict=True)
        ]
        assert shown == [
            [(91 - less, 1, 2, False), (60 - less, 0, 1, False)],
            [(97 - less, 2, 2, True), (54 - less, 4.320493799, 3, True)],
        ]


def test_ties_as_printed_are_all_best_and_a_lone_method_is_not(engine: Engine) -> None:
    add_seeds(engine, [0.912341], "fedavg")
    add_seeds(engine, [0.912339], "ditto")
    add_seeds(engine, [0.9122], "local", hyperparameters={})
    add_seeds(engine, [0.5], "local", dataset="cifar10", hyperparameters={})
    table = build(engine)
    assert [cell(table, name).best for name in ("Local", "FedAvg", "Ditto")] == [False, True, True]
    assert not cell(table, "Local", "Cifar10, Dir(0.1)").best


def test_protocols_are_never_averaged_and_their_heads_say_what_differs(engine: Engine) -> None:
    add_seeds(engine, [0.9])
    add_seeds(engine, [0.5], rounds=20)
    add_seeds(engine, [0.6], rounds=20, lr=0.01)
    add_seeds(engine, [0.7], partition={"scheme": "dirichlet", "beta": 0.1, "clients": 50})
    add_seeds(engine, [0.8], partition={"scheme": "pathological", "classes_per_client": 2, "clients": 20})
    table = build(engine)
    assert {s.title: cell(table, "FedAvg", s.title).mean for s in table.columns} == {
        "MNIST, Dir(0.1), 20 clients, lr 0.1, 2000 rounds": pytest.approx(90),
        "MNIST, Dir(0.1), 20 clients, lr 0.1, 20 rounds": pytest.approx(50),
        "MNIST, Dir(0.1), 20 clients, lr 0.01, 20 rounds": pytest.approx(60),
        "MNIST, Dir(0.1), 50 clients, lr 0.1, 2000 rounds": pytest.approx(70),
        "MNIST, Pathological(2)": pytest.approx(80),
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("local_epochs", 5), ("batch_size", 20), ("join_ratio", 0.5), ("eval_every", 5),
        ("drop_last", "never"), ("bn_buffers", "average"), ("dtype", "float64"), ("model", "mlp"),
        ("partition", {"scheme": "dirichlet", "beta": 0.1, "clients": 20, "seed": 2}),
    ],
)  # fmt: skip
def test_whatever_differs_makes_a_column_of_its_own(engine: Engine, field: str, value: Any) -> None:
    add_seeds(engine, [0.9, 0.9])
    add_seeds(engine, [0.5, 0.5], **{field: value})
    table = build(engine)
    assert len({s.title for s in table.columns}) == 2
    assert sorted(c.mean for column in table.columns for c in column.cells[:1] if c) == [pytest.approx(50), pytest.approx(90)]


@pytest.mark.parametrize(("join_ratio", "columns"), [(1.0, 1), (0.5, 2)])
def test_who_is_evaluated_matters_only_where_not_all_take_part(engine: Engine, join_ratio: float, columns: int) -> None:
    for seed, evaluate in enumerate(("participants", "all")):
        add_run(engine, spec(seed=seed, join_ratio=join_ratio, evaluate=evaluate), [0.9])
    assert len(build(engine).columns) == columns


def test_partitions_that_differ_under_one_protocol_are_kept_apart(engine: Engine) -> None:
    """The same specification made another partition, say with another NumPy: its runs are not the same experiment."""
    add_run(engine, spec(seed=0), [0.9], partition=add_partition(engine, "a" * 64))
    add_run(engine, spec(seed=1), [0.5], partition=add_partition(engine, "b" * 64))
    table = build(engine)
    assert cell(table, "FedAvg", "MNIST, Dir(0.1), partition hash aaaaaaaa").mean == pytest.approx(90)
    assert cell(table, "FedAvg", "MNIST, Dir(0.1), partition hash bbbbbbbb").mean == pytest.approx(50)


def test_the_partition_hash_is_not_news_where_something_else_differs(engine: Engine) -> None:
    add_run(engine, spec(), [0.9], partition=add_partition(engine, "a" * 64))
    other = {"scheme": "dirichlet", "beta": 0.1, "clients": 50}
    add_run(engine, spec(partition=other), [0.5], partition=add_partition(engine, "b" * 64))
    assert [s.head[2:] for s in build(engine).columns] == [("20 clients",), ("50 clients",)]


def test_hyperparameters_and_versions_make_rows_that_say_what_differs(engine: Engine) -> None:
    add_seeds(engine, [0.5])
    for lam, value in ((0.1, 0.6), (1.0, 0.7)):
        add_seeds(engine, [value], "ditto", hyperparameters={"lam": lam, "personal_epochs": 2})
    add_seeds(engine, [0.8], version=2)
    table = build(engine)
    assert {r.label: cell(table, r.label).mean for r in table.rows} == {
        "FedAvg (v1)": pytest.approx(50),
        "FedAvg (v2)": pytest.approx(80),
        "Ditto": pytest.approx(60),
        "Ditto (lam=1)": pytest.approx(70),
    }


def test_only_finished_runs_count_and_the_others_are_named(engine: Engine) -> None:
    add_run(engine, spec(seed=0), [0.5])
    add_run(engine, spec(seed=1), [0.9], status="running")
    add_run(engine, spec(seed=2), [0.9], status="diverged")
    add_run(engine, spec(seed=3), [])
    with locks.locked(engine, spec(seed=1).key):
        table = build(engine)
        assert cell(table, "FedAvg").runs == (1,)
        assert any("3 runs (1 diverged, 1 finished, 1 running)" in note for note in table.notes)
        assert cell(build(engine, Filters(status=["finished", "running"])), "FedAvg").runs == (1, 2)
        every = build(engine, Filters(status=["any"]))
        assert "Counted as far as they got: run 2 (running), run 3 (diverged)." in every.notes
    killed = build(engine, Filters(status=["interrupted"]))
    assert "Counted as far as they got: run 2 (interrupted)." in killed.notes, "no process trains it"
    assert not any("as far as they got" in note for note in build(engine).notes)
    assert cell(every, "FedAvg").runs == (1, 2, 3)  # the fourth has nothing to show


def test_of_a_repeated_run_the_newest_attempt_that_counts_is_taken(engine: Engine) -> None:
    add_run(engine, spec(), [0.5])
    second = add_run(engine, spec(), [0.6])
    add_run(engine, spec(), [0.7], status="interrupted")
    assert cell(build(engine), "FedAvg").runs == (second,)
    assert not any("Not counted" in note for note in build(engine).notes)


def test_the_table_says_how_the_round_was_chosen(engine: Engine) -> None:
    add_seeds(engine, [0.5])
    assert any("best round, chosen on the test data" in note for note in build(engine).notes)
    assert not any("best round" in note for note in build(engine, round_rule="last").notes)
    assert any("fewer than 10 evaluated rounds" in note for note in build(engine, round_rule="mean-last:10").notes)


def test_errors_say_what_there_is(engine: Engine) -> None:
    with pytest.raises(UserError, match=r"no runs in this database(.|\n)*pflbench run"):
        build(engine)
    add_run(engine, spec(), [0.5], status="running")
    add_run(engine, spec("ditto", dataset="cifar10"), [0.5], status="failed")
    for fields, text in (
        ({"methods": ["fedala"]}, r"No runs with method 'fedala'(.|\n)*ditto, fedavg"),
        ({"datasets": ["mnits"]}, r"No runs with dataset 'mnits'(.|\n)*cifar10, mnist"),
        ({"partitions": ["IID"]}, r"partition 'IID'(.|\n)*Dir\(0.1\)"),
        ({"methods": ["ditto"], "datasets": ["mnist"]}, "No run fits"),
        ({"status": ["done"]}, "Unknown status 'done'"),
        ({}, r"None of the 2 matching runs is finished(.|\n)*--status any"),
    ):
        with pytest.raises(UserError, match=text):
            build(engine, Filters(**fields))  # type: ignore[arg-type]


# The paper's values


def test_another_protocol_shows_the_papers_value_only_when_asked(engine: Engine) -> None:
    add_seeds(engine, [0.985], rounds=20, batch_size=20)
    assert cell(build(engine), "FedAvg").paper is None
    assert cell(build(engine, paper="never"), "FedAvg").paper is None
    table = build(engine, paper="always")
    found = cell(table, "FedAvg")
    assert found.paper is not None
    assert found.paper.mean == 98.81
    assert found.difference is None
    assert found.differences == ("rounds 20 instead of 2000", "batch size 20 instead of 10")
    assert any("rounds 20 instead of 2000, batch size 20 instead of 10" in note for note in table.notes)


def test_a_difference_of_one_method_is_told_of_that_method_only(engine: Engine) -> None:
    add_seeds(engine, [0.9], rounds=20)
    for lam in (0.1, 1.0):
        add_seeds(engine, [0.95], "ditto", rounds=20, hyperparameters={**HYPERPARAMETERS["ditto"], "lam": lam})
    notes = [note for note in build(engine, paper="always").notes if note.startswith("†")]
    assert notes == [
        "† protocol differs (MNIST, Dir(0.1)): rounds 20 instead of 2000.",
        "† protocol differs (Ditto (lam=1)): lam 1 instead of 0.1.",
    ]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"lr": 0.01}, "lr 0.01 instead of 0.1"),
        ({"local_epochs": 2}, "local epochs 2 instead of 1"),
        ({"join_ratio": 0.5}, "join ratio 0.5 instead of 1"),
        ({"eval_every": 10}, "evaluation interval 10 instead of 1"),
        ({"dropout": 0.2}, "dropout 0.2 instead of 0"),
        ({"upload": "int8"}, "upload int8 instead of full"),
        ({"partition": {"scheme": "dirichlet", "beta": 0.1, "clients": 10}}, "clients 10 instead of 20"),
        ({"partition": {"scheme": "dirichlet", "beta": 0.1, "clients": 20, "seed": 3}}, "partition seed 3 instead of 1"),
        ({"method": "ditto", "hyperparameters": {**HYPERPARAMETERS["ditto"], "lam": 1}}, "lam 1 instead of 0.1"),
        ({"hyperparameters": {"momentum": 0.9}}, "momentum 0.9"),
        ({"method": "ditto", "hyperparameters": {"lam": 0.1, "personal_epochs": 2}}, "aggregation absent instead of weighted"),
    ],
)  # fmt: skip
def test_each_condition_of_the_paper_is_looked_at(change: dict[str, Any], difference: str) -> None:
    assert match(spec(**change))[1] == (difference,)


def test_the_last_round_is_not_what_the_paper_reports() -> None:
    assert match(spec(), "last")[1] == ("result last instead of best",)


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "digits", "model": "mlp"},
        {"model": "mlp"},
        {"partition": {"scheme": "iid", "clients": 20}},
        {"partition": {"scheme": "dirichlet", "beta": 0.5, "clients": 20}},
        {"method": "local"},
    ],
)
def test_where_the_paper_has_no_value_none_is_shown(change: dict[str, Any]) -> None:
    assert paper.find(spec(**change).model_dump(mode="json"), RoundRule("best")) is None


def test_a_pfllib_folder_counts_as_the_partition_it_states() -> None:
    folder = {"scheme": "pfllib", "path": "x/MNIST", "content": "c", "clients": 20, "kind": "dirichlet", "beta": 0.1}
    value, differences = match(spec(partition=folder))
    assert (value.mean, differences) == (98.81, ())


def test_of_two_values_the_one_with_the_nearer_protocol_is_taken() -> None:
    """Cifar100, Dir(0.1): 20 clients in Table 2, 100 clients half of which join in Table 7."""
    fields: dict[str, Any] = {"dataset": "cifar100", "lr": 0.005}
    half = spec(partition={"scheme": "dirichlet", "beta": 0.1, "clients": 100}, join_ratio=0.5, **fields)
    for run, mean, table in ((spec(**fields), 31.89, "Table 2"), (half, 39.51, "Table 7")):
        value, differences = match(run)
        assert (value.mean, value.table, differences) == (mean, table, ())


def test_the_listed_hyperparameters_are_the_methods_defaults() -> None:
    """They are read from the source, where importing it would import torch."""
    for name in methods.names(with_ala=True):
        assert paper.hyperparameters(name) == methods.spec(name, {}).hyperparameters


def test_what_the_code_of_2022_did_is_compared_too() -> None:
    """methods.md 0.6: the preset is what most likely produced the printed values."""
    names = ("pfedme", "fedamp", "fedphp", "fedala")
    assert {name for name in methods.METHODS if methods.card(name).presets.get("fedala2022")} == set(names)
    for name in (*names, "fedphp+ala", "ditto+ala"):
        for chosen in (None, "fedala2022"):
            made = spec(name, dataset="cifar100", lr=0.005)
            assert not match(made.model_copy(update={"method": methods.spec(name, {}, chosen)}))[1], name


def test_a_number_that_is_all_clients_is_all() -> None:
    for M, fits in (("all", True), (20, True), (10, False)):
        made = spec("fedfomo", dataset="cifar100", lr=0.005)
        assert (not match(made.model_copy(update={"method": methods.spec("fedfomo", {"M": M})}))[1]) == fits


def test_runs_that_adapt_on_test_labels_are_marked(engine: Engine) -> None:
    leaking = spec("per-fedavg", hyperparameters={"adapt_on": "test2022"})
    leaking = leaking.model_copy(update={"method": leaking.method.model_copy(update={"test_labels": True})})
    add_run(engine, leaking, [0.1, 0.5])
    add_run(engine, spec("per-fedavg", hyperparameters={"adapt_on": "train"}), [0.1, 0.4])
    table = build(engine)
    labelled = {row.label for row in table.rows}
    assert labelled == {"Per-FedAvg (adapt_on=test2022) ‡", "Per-FedAvg"}
    assert [note for note in table.notes if note.startswith("‡")] == [
        "‡: clients adapt on labelled test data, so this is no test."
    ]
    assert leaking.key == spec("per-fedavg", hyperparameters={"adapt_on": "test2022"}).key


def test_a_method_with_ala_stands_after_all_methods_under_its_name(engine: Engine) -> None:
    for name in ("fedala", "ditto+ala", "feddeper", "fedprox+ala"):
        add_run(engine, spec(name), [0.1, 0.5])
    assert [row.label for row in build(engine).rows] == ["FedALA", "FedDeper", "FedProx+ALA", "Ditto+ALA"]
    assert [row.label for row in build(engine, Filters(methods=["ditto+ala"])).rows] == ["Ditto+ALA"]


def test_pathological_settings_come_first_and_the_verdict_stands_beside_the_papers_value(engine: Engine) -> None:
    pathological = {"scheme": "pathological", "classes_per_client": 2, "clients": 20}
    groups = {"scheme": "groups", "groups": 5, "clients": 20}
    for dataset, rate in (("cifar10", 0.005), ("mnist", 0.1)):
        for partition in (groups, None, pathological):
            add_seeds(engine, [0.9], dataset=dataset, lr=rate, partition=partition)
    grid = build(engine).grid()
    assert [", ".join(column.head) for column in grid.columns] == [
        "MNIST, Pathological(2)", "paper", "verdict", "Cifar10, Pathological(2)", "paper", "verdict",
        "MNIST, Dir(0.1)", "paper", "verdict", "Cifar10, Dir(0.1)", "paper", "verdict",
        "MNIST, Groups(5)", "Cifar10, Groups(5)",
    ]  # fmt: skip
    # FedAvg of Table 2: 97.93 and 55.09; of Table 7: 98.81; of Table 2: 59.16.
    assert [column.entries[0].text for column in grid.columns if column.head == ("verdict",)] == ["differs"] * 4
    hidden = build(engine, paper="never").grid()
    assert not [column for column in hidden.columns if column.head in (("paper",), ("verdict",))]
