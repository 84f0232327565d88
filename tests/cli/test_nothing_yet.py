"""A stranger's first three commands, in any order: what there is not yet leads on, and what there is is shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.command import Shell
from support.report_database import add_run, spec

from pflbench.errors import UserError
from pflbench.report import paper
from pflbench.run.plan import partition_options
from pflbench.store import database as db


@pytest.mark.parametrize(
    ("command", "leads_to"),
    [
        (("table", "ablation"), "ablation"),
        (("plot", "trajectory"), "trajectory"),
        (("plot", "heterogeneity"), "plot:heterogeneity"),
    ],
)
def test_nothing_yet_says_what_makes_it(command: tuple[str, str], leads_to: str, shell: Shell) -> None:
    """Without a database, with an empty one, and with runs of something else."""
    for step in range(3):
        assert f"pflbench reproduce {leads_to} --scale smoke" in shell.refused(*command)
        made = db.connect(db.to_url("pflbench.db"))
        if step == 1:
            add_run(made, spec("fedavg"), [0.1, 0.2])


def test_one_run_of_the_paper_s_usual_setting_fills_its_place_in_the_table(shell: Shell) -> None:
    """`run -m fedala -d tiny` is Dir(0.1), which Table 4 leaves to Table 2: it stands between Dir(0.01) and Dir(0.5)."""
    of = spec("fedala", dataset="tiny", lr=0.005, hyperparameters=paper.hyperparameters("fedala"))
    add_run(db.connect(db.to_url("pflbench.db")), of, [0.1, 0.4])
    document = json.loads(shell("table", "heterogeneity", "--json").out)
    settings = list(dict.fromkeys(cell["setting"] for cell in document["cells"]))
    assert settings == ["Tiny-ImageNet, Dir(0.01)", "Tiny-ImageNet, Dir(0.1)", "Tiny-ImageNet, Dir(0.5)", "AG News, Dir(1)"]
    (filled,) = (cell for cell in document["cells"] if cell["n"])
    assert (filled["mean"], filled["runs"], filled["setting"]) == (40, [1], settings[1])
    assert {cell["verdict"] for cell in document["cells"] if not cell["n"]} == {"not run"}
    assert any(note.startswith("Not run: 42 of 42 cells; next: pflbench run -m fedavg -d tiny") for note in document["notes"])
    assert "40.00" in shell("table", "heterogeneity").out


def test_a_distribution_needs_no_run_and_no_database(shell: Shell) -> None:
    for step in range(2):
        done = shell("plot", "distribution", "-d", "digits", "-p", "Pathological(2)", "-p", "iid", "-o", "d.svg")
        assert done.code == 0, done
        assert "Digits Pathological(2)" in done.err
        assert "Digits IID" in done.err
        assert Path("pflbench.db").exists() is bool(step)
        db.connect(db.to_url("pflbench.db"))
    assert "Unknown partition 'Dr(1)'" in shell.refused("plot", "distribution", "-d", "digits", "-p", "Dr(1)", "--db", "none.db")
    assert "pflbench data download mnist" in shell.refused("plot", "distribution", "-d", "mnist")


def test_labels_ask_for_their_partitions() -> None:
    assert partition_options("dir(0.1)") == {"partition": "dirichlet", "beta": 0.1}
    assert partition_options("Groups(5)") == {"partition": "groups", "groups": 5}
    with pytest.raises(UserError, match=r"Unknown partition 'Pathological\(2.5\)'"):
        partition_options("Pathological(2.5)")


def test_the_drawn_partition_is_the_one_that_a_run_has(shell: Shell) -> None:
    shell("plot", "distribution", "-d", "digits", "-o", "alone.png")
    alone = Path("alone.caption.txt").read_text().splitlines()[0]
    shell("run", "-m", "local", "-d", "digits", "--rounds", "1", "-q")
    shell("plot", "distribution", "-d", "digits", "-o", "stored.png")
    assert Path("stored.caption.txt").read_text().splitlines()[0] == alone
    import matplotlib.image as image

    assert np.array_equal(image.imread("alone.png"), image.imread("stored.png"))
