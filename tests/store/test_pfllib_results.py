"""PFLlib's result files as reference series: files as PFLlib writes them, the rows they become, and what is drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from sqlalchemy import Engine
from support.command import Shell
from support.raw_sql import sql
from support.report_database import add_run, spec

from pflbench.errors import UserError
from pflbench.report.figures import curves
from pflbench.report.selection import Filters
from pflbench.store import database as db
from pflbench.store.exchange import pfllib as result_files

ACCURACY = [0.125, 0.5, 0.75, 0.625]


def pfllib(name: str, accuracy: Sequence[float] = ACCURACY, auc: Sequence[float] = (), loss: Sequence[float] = ()) -> Path:
    """As PFLlib's serverbase.save_results does it; an AUC is never appended there, and its list stays empty."""
    with h5py.File(name, "w") as file:
        file.create_dataset("rs_test_acc", data=accuracy)
        file.create_dataset("rs_test_auc", data=auc)
        file.create_dataset("rs_train_loss", data=loss or [2.0 / (k + 1) for k in range(len(accuracy))])
    return Path(name)


@pytest.fixture
def engine(shell: Shell, tmp_path: Path) -> Iterator[Engine]:
    """pflbench.db, with runs of three rounds on MNIST."""
    engine = db.connect(db.to_url(str(tmp_path / "pflbench.db")))
    for method in ("fedavg", "fedala"):
        add_run(engine, spec(method), [0.1, 0.2, 0.3])
    yield engine
    engine.dispose()


def test_a_file_becomes_rows_once(engine: Engine, shell: Shell) -> None:
    pfllib("MNIST_FedALA_test_3.h5", auc=[0.5, 0.6, 0.7, 0.8])
    done = shell("import", "MNIST_FedALA_test_3.h5", "--db", "other.db")
    assert done.code == 0
    assert "PFLlib's FedALA on mnist, rounds 0 to 3, best 75.00 %: a new reference series" in done.out
    Path("MNIST_FedALA_test_3.h5").rename("copy.h5")
    assert "here already" in shell("import", "copy.h5", "-d", "mnist", "-m", "fedala", "--db", "other.db").out
    assert shell("import", "other.db").out == "other.db: 1 reference series\n", "it travels with a database"
    assert shell("import", "other.db").out == "other.db: nothing to import\n"
    for path in ("pflbench.db", "other.db"):
        columns = "file, dataset, method, algorithm, goal, times"
        assert sql(path, f"SELECT {columns} FROM reference_run") == [
            ("MNIST_FedALA_test_3.h5", "mnist", "fedala", "FedALA", "test", 3)
        ]
        found = sql(path, "SELECT round, accuracy, auc, train_loss FROM reference_round ORDER BY round")
        assert found == [(t, ACCURACY[t], 0.5 + t / 10, 2.0 / (t + 1)) for t in range(4)]
        assert sql(path, "PRAGMA foreign_key_check") == []


def test_what_the_name_does_not_say(engine: Engine, shell: Shell) -> None:
    pfllib("result.h5")
    assert "--dataset NAME" in shell.refused("import", "result.h5")
    assert "--method NAME" in shell.refused("import", "result.h5", "-d", "mnist")
    arguments = ("import", "result.h5", "-m", "FedAvg-C", "--json")
    (first,) = json.loads(shell(*arguments, "-d", "cifar10").out)
    assert (first["state"], first["dataset"], first["method"], first["last_round"]) == ("new", "cifar10", "fedavg-c", 3)
    (second,) = json.loads(shell(*arguments, "-d", "mnist", "--eval-gap", "10").out)  # a mistake can be mended
    assert (second["state"], second["last_round"]) == ("replaced", 30)
    assert sql(engine, "SELECT dataset FROM reference_run") == [("mnist",)]
    assert sql(engine, "SELECT round FROM reference_round") == [(0,), (10,), (20,), (30,)]
    assert "--eval-gap" in shell.refused("import", "pflbench.db", "--eval-gap", "2", "--db", "other.db")


def test_pfllibs_names(shell: Shell) -> None:
    for name, expected in {
        "Cifar10_PerAvg_test_0": ("cifar10", "per-fedavg", "test", 0),
        "TinyImagenet_pFedMe_half_of_them_2": ("tiny", "pfedme", "half_of_them", 2),
        "Tiny-ImageNet_FedPer_t_0": ("tiny", "fedper", "t", 0),
        "AGNews_APPLE_test_11": ("agnews", "apple", "test", 11),
    }.items():
        found = result_files.load(pfllib(f"{name}.h5"))
        assert (found.dataset, found.method, found.goal, found.times) == expected


def test_files_that_are_not_pfllibs(engine: Engine, shell: Shell) -> None:
    cut = pfllib("MNIST_FedAvg_cut_0.h5")
    cut.write_bytes(cut.read_bytes()[:300])
    with h5py.File("MNIST_FedAvg_weights_0.h5", "w") as file:
        file.create_dataset("weights", data=[1.0])
        file.create_group("rs_test_acc")
    pfllib("MNIST_FedAvg_percent_0.h5", [12.5, 80.0])
    pfllib("MNIST_FedAvg_nan_0.h5", [0.5, float("nan")])
    pfllib("MNIST_FedAvg_long_0.h5", [0.5, 0.6], loss=[1.0])
    pfllib("MNIST_FedAvg_empty_0.h5", [])
    pfllib("MNIST_FedAvg_inf_0.h5", [0.5, float("inf")])
    pfllib("MNIST_FedAvg_auc_0.h5", [0.5, 0.6], auc=[0.5, 7.0])
    good = pfllib("MNIST_FedAvg_good_0.h5", loss=[1.0, float("inf"), float("nan"), 0.8])
    names = [str(path) for path in sorted(Path().glob("*.h5"))]
    done = shell("import", *names)
    assert (done.code, len(done.out.splitlines()), good.name in done.out) == (2, 1, True)
    no_series = "rs_test_acc is no series of accuracies between 0 and 1"
    for told in (
        "cut_0.h5 is damaged",
        "weights_0.h5 is no result file of PFLlib: it holds weights",
        *(f"{name}_0.h5: {no_series}" for name in ("percent", "nan", "inf", "empty")),
        "auc_0.h5: rs_test_auc holds values that are not between 0 and 1",
        "long_0.h5: rs_train_loss has the shape (1,), rs_test_acc (2,)",
    ):
        assert told in done.err
    assert sql(engine, "SELECT train_loss FROM reference_round") == [(1.0,), (None,), (None,), (0.8,)]
    assert "1000000" in shell.refused("import", good.name, "--eval-gap", str(10**19))


def test_references_are_drawn_dashed_and_only_when_asked_for(engine: Engine, shell: Shell) -> None:
    with pytest.raises(UserError, match="There are no reference series"):
        curves.plot(engine, references=True)
    pfllib("MNIST_FedALA_test_0.h5", [0.1, 0.2, 0.3, 0.4])
    pfllib("MNIST_FedALA_test_1.h5", [0.3, 0.4, 0.7, 0.8])
    pfllib("MNIST_FedPer_test_0.h5")
    pfllib("Cifar10_FedALA_test_0.h5")
    assert shell("import", *map(str, Path().glob("*.h5"))).code == 0
    assert len(curves.plot(engine).figure.axes[0].lines) == 2

    drawing = curves.plot(engine, references=True)
    (ax,) = drawing.figure.axes
    ours, dashed = ax.lines[:2], {line.get_label(): line for line in ax.lines[2:]}
    assert set(dashed) == {"PFLlib: FedALA", "PFLlib: FedPer"}
    np.testing.assert_array_equal(dashed["PFLlib: FedALA"].get_xdata(), [0, 1, 2])  # as far as our runs go
    np.testing.assert_allclose(dashed["PFLlib: FedALA"].get_ydata(), [20, 30, 50])
    (fedala,) = (line for line in ours if line.get_label() == "FedALA")
    assert dashed["PFLlib: FedALA"].get_color() == fedala.get_color()
    assert all(line.is_dashed() for line in dashed.values())
    (legend,) = drawing.figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"FedAvg", "FedALA", *dashed}
    for said in ("PFLlib", "MNIST_FedALA_test_0.h5, MNIST_FedALA_test_1.h5", "protocol is not known"):
        assert said in drawing.caption
    assert "Cifar10" not in drawing.caption

    pfllib("MNIST_FedALA_other_0.h5", [0.1, 0.3])
    assert shell("import", "MNIST_FedALA_other_0.h5").code == 0
    (ax,) = curves.plot(engine, Filters(methods=["FedALA"]), references=True).figure.axes
    one, two = ax.lines[1:]
    assert [one.get_label(), two.get_label()] == ["PFLlib: FedALA (other)", "PFLlib: FedALA (test)"]
    assert one._dash_pattern != two._dash_pattern  # type: ignore[attr-defined]
    assert "No such reference series on mnist" in shell.refused("plot", "curves", "-m", "fedavg", "--references")
    assert "have no costs" in shell.refused("plot", "curves", "--over", "seconds", "--references")
    assert "--references does not belong" in shell.refused("plot", "fairness", "--references")
