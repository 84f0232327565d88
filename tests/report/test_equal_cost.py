"""`--at` and `--over`: tables, ranks and curves of what runs had when they had spent the same (methods.md 2.12)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine
from support.command import Shell, parsed
from support.report_database import add_run, spec
from support.store_samples import write_round

from pflbench.errors import UserError
from pflbench.report import budgets
from pflbench.report.figures import curves
from pflbench.report.selection import Filters
from pflbench.report.tables import accuracy, evidence, overhead, ranks
from pflbench.report.tables.grid import render
from pflbench.store import database as db
from pflbench.store import write
from pflbench.store.write import RoundRecord

G = 10**9


def add(
    engine: Engine,
    method: str,
    values: list[float],
    flops: int | None = 1,
    *,
    device: str = "A",
    seed: int = 0,
    beta: float = 0.1,
    samples: int = 0,
) -> int:
    """A run whose rounds cost so many GFLOP, half a second, and a megabyte each way; its first value is the initial model's.

    samples: of the one client that is tested.
    """
    place = {"scheme": "dirichlet", "beta": beta, "clients": 20}
    run = write.create_run(engine, spec(method, seed, partition=place, hyperparameters={}), {"cores": 2})
    write.update_run(engine, run, status="finished", device=device, parameters=1000)
    for t, value in enumerate(values):
        cost = {"flops": flops and flops * G, "bytes_up": 10**6, "bytes_down": 10**6, "seconds_update": 0.5, "participants": 20}
        of_client = {"clients": [0], "correct": [round(value * samples)], "total": [samples], "loss": [1.0]}
        tested = {name: np.array(one) for name, one in of_client.items()} if samples else {}
        write_round(engine, run, RoundRecord(round=t, accuracy=value, **(cost if t else {}), **tested))
    return run


def text(of: accuracy.AccuracyTable) -> dict[str, str]:
    """The first column of a table by row."""
    grid = of.grid()
    return dict(zip(grid.labels, (entry.text for entry in grid.columns[0].entries), strict=True))


def test_a_table_at_equal_cost(engine: Engine) -> None:
    """FedAvg's rounds cost 1 GFLOP, Ditto's 3: at 3 GFLOP three rounds of one stand beside one of the other."""
    add(engine, "fedavg", [0.1, 0.3, 0.5, 0.7, 0.75])
    add(engine, "ditto", [0.1, 0.4, 0.8, 0.9, 0.95], 3)
    add(engine, "fedrep", [0.1, 0.9], None)
    assert text(accuracy.build(engine)) == {"FedAvg": "75.00", "FedRep": "90.00", "Ditto": "95.00 *"}
    limited = accuracy.build(engine, at="flops=3G")
    assert text(limited) == {"FedAvg": "70.00 *", "Ditto": "40.00"}
    assert "Not counted: 1 run without the FLOPs of every round (new runs store them; --force" in " ".join(limited.notes)
    assert {record["round_rule"] for record in limited.grid().records} == {"best at flops=3000000000"}
    ended = accuracy.build(engine, at="flops=5G")
    assert text(ended) == {"FedAvg": "75.00 *", "Ditto": "40.00"}
    assert "Spent less than 5G FLOPs in all, counted with what they have: FedAvg." in ended.notes
    early = accuracy.build(engine, at="flops=2G")
    assert text(early) == {"FedAvg": "50.00 *", "Ditto": "10.00"}
    assert "No evaluated round within 2G FLOPs, counted with the initial model: Ditto." in early.notes


def test_a_budget_that_ends_before_the_first_evaluation_is_said(engine: Engine) -> None:
    """Every third round is evaluated: within two rounds only the initial model is."""
    add_run(engine, spec("fedavg", hyperparameters={}, rounds=6, eval_every=3), [0.1, None, None, 0.7, None, None, 0.8])
    said = "No evaluated round within {} rounds, counted with the initial model: FedAvg."
    for rounds, initial in ((2, True), (3, False)):
        table = accuracy.build(engine, at=f"rounds={rounds}", paper="never")
        assert (said.format(rounds) in table.notes) == initial


def test_a_limit_beyond_all_rounds_is_none(engine: Engine) -> None:
    for seed in range(2):
        for method, flops in (("fedavg", 1), ("ditto", 3), ("fedrep", 2)):
            for beta in (0.1, 0.5):
                add(engine, method, [0.1, 0.3 + flops * seed / 10, 0.2 + beta / 2], flops, seed=seed, beta=beta)
    for limit in ("flops=6G", "bytes=4M", "seconds=1", "rounds=2"):  # what the longest of them spent
        for rule in ("best", "last", "mean-last:2"):
            limited, whole = (accuracy.build(engine, round_rule=rule, at=at, paper="never").grid() for at in (limit, None))
            assert limited.columns == whole.columns
            there, here = (ranks.build(engine, round_rule=rule, at=at) for at in (limit, None))
            assert there.unlimited is not None
            assert (there.unlimited.tolist(), there.average.tolist()) == (here.average.tolist(),) * 2
            assert not any(there.flips(0).values())


def test_ranks_say_where_the_order_flips(engine: Engine) -> None:
    """At 2 GFLOP of FedAvg two rounds count, of FedRep one, of Ditto none: the order is the reverse of that without a limit."""
    for beta in (0.1, 0.5):
        add(engine, "fedavg", [0.1, 0.3, 0.5, 0.5], 1, beta=beta)
        add(engine, "fedrep", [0.1, 0.4, 0.6, 0.6], 2, beta=beta)
        add(engine, "ditto", [0.1, 0.5, 0.7, 0.7], 3, beta=beta)
        add(engine, "local", [0.1, 0.1, 0.1, 0.1], 1, beta=beta)  # ties with Ditto at 2 GFLOP: no flip
    table = ranks.build(engine, at="flops=2G")
    assert dict(zip((row.method for row in table.rows), table.average, strict=True)) == {
        "fedavg": 1, "fedrep": 2, "local": 3.5, "ditto": 3.5,
    }  # fmt: skip
    grid = table.grid()
    column = next(column for column in grid.columns if column.head == ("rank", "without --at"))
    assert dict(zip(grid.labels, (entry.text for entry in column.entries), strict=True)) == {
        "FedAvg": "3.00 ↑", "FedRep": "2.00 ↑↓", "Local": "4.00", "Ditto": "1.00 ↓",
    }  # fmt: skip
    flips = {record["method"]: (record["passes"], record["passed_by"]) for record in grid.records}
    assert flips == {
        "fedavg": (("FedRep", "Ditto"), ()), "fedrep": (("Ditto",), ("FedAvg",)), "local": ((), ()),
        "ditto": ((), ("FedAvg", "FedRep")),
    }  # fmt: skip
    assert any(note.startswith("↑: ranks better") for note in grid.notes)
    assert r"$\uparrow$" in render(grid, "latex")
    assert not any("--at" in line for line in (*ranks.build(engine).grid().notes, *ranks.build(engine).grid().columns[1].head))


def test_seconds_of_another_machine_are_marked(engine: Engine) -> None:
    for beta in (0.1, 0.5):
        for method, device in (("fedavg", "A"), ("ditto", "A"), ("fedrep", "B" if beta == 0.1 else "A")):
            add(engine, method, [0.1, 0.3, 0.5], device=device, beta=beta)
    made = "§: another machine or load: B, 2 cores, 1 run at a time (FedRep)."
    for limited in (accuracy.build(engine, at="seconds=0.5"), ranks.build(engine, at="seconds=0.5")):
        grid = limited.grid()
        assert made in limited.notes
        first = dict(zip(grid.labels, (entry.text for entry in grid.columns[0].entries), strict=True))
        assert {label for label, shown in first.items() if "§" in shown} == {"FedRep"}
        marked = {(r["method"], r.get("setting")) for r in grid.records if r["made_elsewhere"]}
        assert len(marked) == 1
    for at in ("flops=1G", "bytes=2M", "rounds=1", None):
        assert "§" not in render(accuracy.build(engine, at=at).grid())


def test_claims_at_equal_cost(engine: Engine) -> None:
    """FedALA is above FedAvg after four rounds of each, and below it within the FLOPs of four rounds of FedAvg."""
    for method, values, flops in (("fedavg", [0.1, 0.3, 0.5, 0.6, 0.7], 1), ("fedala", [0.1, 0.2, 0.4, 0.7, 0.9], 2)):
        add(engine, method, values, flops, device=method, samples=500)

    def found(at: str | None) -> tuple[float, str]:
        (claim,) = evidence.build(engine, at=at).findings.values()
        return pytest.approx(claim.gap), claim.verdict

    assert found(None) == (20, "confirmed")
    assert found("flops=4G") == (-30, "not confirmed")
    assert found("rounds=3") == (10, "confirmed")
    assert not any("achine" in note for note in evidence.build(engine, at="flops=4G").notes)
    timed = evidence.build(engine, at="seconds=1").notes
    assert {"Made on: fedavg, 2 cores, 1 run at a time.", "Times of different machines or loads do not compare."} < {*timed}
    assert "Another machine or load: fedala, 2 cores, 1 run at a time (FedALA)." in timed


def test_a_papers_table_at_equal_cost_is_another_protocol(engine: Engine) -> None:
    add(engine, "fedavg", [0.1, 0.98])
    found = accuracy.build(engine, at="rounds=1", paper="always")
    assert "result best at rounds=1 instead of best" in found.columns[0].cells[0].differences  # type: ignore[union-attr]
    assert accuracy.build(engine, at="rounds=1").columns[0].printed == (None,)


@pytest.mark.parametrize(
    ("typed", "amount", "words"),
    [
        ("flops=1e12", 1e12, "1T FLOPs"),
        ("flops=5.1T", 5.1e12, "5.1T FLOPs"),
        ("flops=2500P", 2.5e18, "2500P FLOPs"),
        ("bytes=200M", 2e8, "200M bytes"),
        ("bytes=999", 999, "999 bytes"),
        ("seconds=10min", 600, "600 seconds"),
        ("seconds=1.5h", 5400, "5400 seconds"),
        ("seconds=0.3s", 0.3, "0.3 seconds"),
        ("rounds=1", 1, "1 round"),
    ],
)
def test_a_budget_is_typed_in_human_form(typed: str, amount: float, words: str) -> None:
    found = budgets.parse(typed)
    assert (found.amount, budgets.amount(found)) == (amount, words)
    assert budgets.parse(str(found)) == found


@pytest.mark.parametrize(
    "typed",
    ["", "flops", "flops=", "flops=T", "flops=1t", "flops=1 T", "flops=0", "flops=-1", "flops=nan", "flops=inf", "seconds=1d",
     "seconds=1k", "rounds=1.5", "rounds=2k", "epochs=3", "bytes=1,000", "bytes=1e999", "FLOPS=1"],
)  # fmt: skip
def test_another_budget_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match="expected flops=X, bytes=X, seconds=X or rounds=N"):
        budgets.parse(typed)


def test_curves_over_what_was_spent(engine: Engine) -> None:
    for seed, flops in enumerate((2, 4)):
        add(engine, "fedavg", [0.1, 0.3, 0.5], flops, seed=seed)
    add(engine, "ditto", [0.1, 0.2, 0.3], None)
    drawn = curves.plot(engine, over="flops")
    (ax,) = drawn.figure.axes
    (line,) = ax.lines
    np.testing.assert_allclose(line.get_xdata(), [0, 3, 6])  # the mean over the seeds, in GFLOP
    assert ax.get_xlabel() == "Computed (GFLOP)"
    assert drawn.notes[0].startswith("Not counted: 1 run without the FLOPs of every round")
    (ax,) = curves.plot(engine, over="bytes").figure.axes
    assert ax.get_xlabel() == "Sent and received (MB)"
    for line in ax.lines:
        np.testing.assert_allclose(line.get_xdata(), [0, 2, 4])


def test_panels_have_one_unit(engine: Engine) -> None:
    for beta, flops in ((0.1, 1), (0.5, 4000)):
        add(engine, "fedavg", [0.1, 0.3], flops, beta=beta)
    axes = curves.plot(engine, over="flops").figure.axes
    assert [ax.lines[0].get_xdata()[-1] for ax in axes] == pytest.approx([0.001, 4])
    assert {ax.get_xlabel() for ax in axes} <= {"", "Computed (TFLOP)"}


def test_overhead_has_the_flops_of_a_round_where_they_are_counted(engine: Engine) -> None:
    add(engine, "fedavg", [0.1, 0.3, 0.5], 2)
    add(engine, "fedavg", [0.1, 0.3, 0.5], 4, seed=1)
    add(engine, "ditto", [0.1, 0.3, 0.5], 9)
    add(engine, "fedrep", [0.1, 0.3, 0.5], None)
    add(engine, "local", [0.1, 0.3], None, beta=0.5)
    grid = overhead.build(engine).grid()
    shown = [(column.head[-2:], [e.text for e in column.entries]) for column in grid.columns if "FLOP" in "".join(column.head)]
    assert shown == [  # of the first setting alone; rows: Local, FedAvg, FedRep, Ditto
        (("GFLOP", "per round"), ["-", "3", "-", "9"]),
        (("FLOPs", "x FedAvg"), ["-", "1.00", "-", "3.00"]),
    ]
    assert any(note.startswith("FLOPs: median") for note in grid.notes)
    assert not any(note.startswith("FLOPs") for note in overhead.build(engine, Filters(methods=["fedrep"])).notes)


def test_text_is_cut_where_there_is_no_terminal(shell: Shell, tmp_path: Path) -> None:
    engine = db.connect(f"sqlite:///{tmp_path / 'pflbench.db'}")
    for beta in (0.1, 0.5):
        add(engine, "fedavg", [0.1, 0.3, 0.5], beta=beta)
    done = shell("table", "overhead")
    assert shell("table", "overhead", "-o", "overhead.txt").code == 0
    for shown in (done.out, (tmp_path / "overhead.txt").read_text()):
        rows = [line for line in shown.splitlines() if line.startswith("  FedAvg ")]
        assert len(rows) == 4  # two blocks for each setting
        assert max(map(len, rows)) <= 120


def test_every_report_takes_its_options(shell: Shell, tmp_path: Path) -> None:
    assert shell("run", "-d", "digits", "--clients", "4", "-r", "3", "-q", "-m", "fedavg", "--metrics-every", "2").code == 0
    last = parsed(shell("table", "accuracy", "--round-rule", "last", "--at", "rounds=2", "--json"))
    shell("export", "rounds", "-o", "rounds.json")
    stored = json.loads((tmp_path / "rounds.json").read_text())
    assert last["cells"][0]["mean"] == pytest.approx(100 * stored[2]["accuracy"])
    measured = parsed(shell("table", "--metric", "auc", "--round-rule", "last", "--at", "rounds=2", "--json"))
    assert measured["cells"][0]["rounds"] == [2]  # of rounds 0, 2 and 3, in which it was computed
    spent = sum(one["bytes_up"] + one["bytes_down"] for one in stored[1:3])
    for limit, rounds in ((spent, 2), (spent - 1, 1)):
        found = parsed(shell("table", "--round-rule", "last", "--at", f"bytes={limit}", "--json"))
        assert found["cells"][0]["rounds"] == [rounds]
    assert shell("plot", "curves", "--over", "bytes", "-o", "curves.png").code == 0
    for wrong, words in {
        ("table", "overhead", "--at", "rounds=2"): "--at does not belong to",
        ("table", "--at", "rounds=two"): "expected flops=X",
        ("plot", "fairness", "--at", "rounds=2"): "--at does not belong to",
        ("plot", "curves", "--over", "flops", "--references"): "--over rounds",
    }.items():
        assert words in shell.refused(*wrong)
