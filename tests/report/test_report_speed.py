"""What makes reports quick: no needless imports, no search for garbage, one drawing of a figure. No clock is read."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from support.report_database import add_partition, add_run, spec

from pflbench import cli
from pflbench.cli import plot as plot_command
from pflbench.cli import table as table_command
from pflbench.report.figures import curves, distribution
from pflbench.store import database as db

AXES = 4  # two of each of the two figures
COMMANDS = ("table accuracy", "plot curves", "plot distribution")
NEVER = ("alembic", "pandas", "scipy", "sklearn", "torch", "torchtext", "torchvision")
# Asked for before the command registers anything, hence called after all that it registers.
PROGRAM = """
import atexit, gc, sys
atexit.register(lambda: print("frozen", gc.get_freeze_count() > 0, file=sys.stderr))
from pflbench.cli import main
code = main(sys.argv[1:])
print("imported", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "results.db"
    engine = db.connect(db.to_url(str(path)))
    partition = add_partition(engine)
    for seed in range(2):
        add_run(engine, spec("fedavg", seed), [0.1, 0.5, 0.7 + 0.1 * seed], partition=partition)
    engine.dispose()
    return path


@pytest.mark.parametrize(
    ("command", "also"),
    [
        ("table accuracy", ("matplotlib", "PIL")),
        pytest.param("plot curves", (), marks=pytest.mark.slow),  # the other goes the same way
        ("plot distribution", ()),
    ],
)
def test_a_report_imports_what_it_needs_and_ends_at_once(command: str, also: tuple[str, ...], database: Path) -> None:
    command_line = [sys.executable, "-c", PROGRAM, *command.split(), "--db", str(database)]
    done = subprocess.run(command_line, cwd=database.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = {line.split(" ")[0]: line.split(" ")[1:] for line in done.stderr.splitlines()}
    assert "pflbench.report.selection" in said["imported"] or "pflbench.report.figures.distribution" in said["imported"]
    assert not {*NEVER, "matplotlib.pyplot", *also} & set(said["imported"])
    assert said["frozen"] == ["True"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_report_does_not_search_for_garbage(command: str, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = table_command if command.startswith("table") else plot_command
    original, enabled = module.call, []

    def call(*arguments: Any) -> Any:
        enabled.append(gc.isenabled())
        return original(*arguments)

    monkeypatch.setattr(module, "call", call)
    monkeypatch.chdir(database.parent)
    assert cli.main([*command.split(), "--db", str(database)]) == 0
    assert enabled == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_a_figure_is_drawn_once_and_its_texts_are_measured_a_few_times(
    suffix: str, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def watch(of: type, name: str) -> None:
        original = getattr(of, name)

        def watched(self: object, *arguments: Any, **options: Any) -> Any:
            called.append(name)
            return original(self, *arguments, **options)

        monkeypatch.setattr(of, name, watched)

    watch(Figure, "draw")
    watch(Axis, "get_tightbbox")
    engine = db.connect(db.to_url(str(database)))
    for report in (curves, distribution):
        drawing = report.plot(engine)
        drawing.save(tmp_path / f"figure{suffix}")
        assert drawing.figure.get_layout_engine() is None
    engine.dispose()
    assert called.count("draw") == 2
    # Two measurements of Matplotlib's to a placing: of the panels, where titles are wrapped, and at the figure's height.
    assert called.count("get_tightbbox") <= AXES * 2 * 3
