"""A method that is a file and a line, and a plug-in: in every list, table and figure by its title, in its colour."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.command import ROOT, finish, start

from pflbench.contract import template
from pflbench.methods import METHODS
from pflbench.report import looks

# Commands in one process, since importing takes longer than most of them: what each said on stdout.
PROGRAM = """
import json, shlex, sys
from contextlib import redirect_stdout
from io import StringIO
from pflbench.cli import main
from pflbench.report import looks
said = {}
for command in sys.argv[1:]:
    with redirect_stdout(StringIO()) as out:
        assert main(shlex.split(command)) == 0, command
    said[command] = out.getvalue()
names = ("fedavg", "fed-mix", "fed-mix+ala", "late-mix", "late-mix+ala")
said["looks"] = {name: (looks.of(name).colour, looks.of(name).marker, looks.of(name).dash) for name in names}
print(json.dumps(said))
"""
NAMES = ("fed-mix", "fed-mix+ala", "late-mix", "late-mix+ala")
TITLES = ("FedMix", "FedMix+ALA", "LateMix", "LateMix+ALA")
pytestmark = pytest.mark.slow
RUN = "run --plugin late_mix.py -d digits -r 2 -q --batch-size 100 --save-artifacts-every 1 --trajectory 4:1-2 -m fedavg "
RUNS = tuple(RUN + " ".join(f"-m {name}" for name in NAMES) + more for more in (" --beta 0.1", " --beta 1", " --clients 5"))
TABLES = ("accuracy", "overhead", "ranks")
OF_ALL = ("curves", "overhead", "scalability", "heterogeneity", "fairness", "ranks")
OF_ALA = ("ala-weights", "ala-convergence", "trajectory", "loss")
FIGURES = tuple(f"plot {name} -d digits -o {name}.svg" for name in OF_ALL)
FIGURES += tuple(f"plot {name} -m fed-mix+ala -m late-mix+ala -p 'Dir(0.1)' -o {name}.svg" for name in OF_ALA)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with another method, built in by its file and its line, and the file of a plug-in."""
    folder = tmp_path_factory.mktemp("checkout")
    for part in ("pflbench", "alembic"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    template.write("late-mix", folder)
    template.write("fed-mix", folder / "pflbench" / "methods")
    contents = folder / "pflbench" / "methods" / "__init__.py"
    name, place = list(METHODS.items())[-1]
    line = f'    "{name}": "{place}",\n'
    text = contents.read_text()
    assert text.count(line) == 1
    contents.write_text(text.replace(line, f'{line}    "fed-mix": "pflbench.methods.fed_mix:FedMix",\n'))
    return folder


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, Any]:
    """What each command said. No report is told of the plug-in: it reads the database."""

    def of(*commands: str) -> dict[str, Any]:
        done = finish(start(*commands, folder=folder, program=PROGRAM, PYTHONPATH=str(folder)))
        assert done.code == 0, done.err
        found: dict[str, Any] = json.loads(done.out)
        return found

    tables = (f"table {name}" for name in TABLES)
    return of(*RUNS) | of("methods list --json", "methods show fed-mix+ala --json", *tables, *FIGURES, "report -o page.html")


def test_the_line_is_all_that_the_lists_need(said: dict[str, Any]) -> None:
    *_, last = json.loads(said["methods list --json"])
    assert last == {
        "name": "fed-mix", "title": "FedMix", "venue": "unpublished",
        "category": "personalized FL: personalized aggregation", "from": "pflbench",
    }  # fmt: skip
    assert json.loads(said["methods show fed-mix+ala --json"])["hyperparameters"][0]["name"] == "alpha"


@pytest.mark.parametrize("name", TABLES)
def test_tables_show_the_titles(said: dict[str, Any], name: str) -> None:
    rows = [line.split()[0] for line in said[f"table {name}"].splitlines() if line.strip()]
    assert {*TITLES, "FedAvg"} <= set(rows)
    if name != "ranks":
        order = [rows.index(title) for title in ("FedAvg", "FedMix", "LateMix")]
        assert order == sorted(order), "in the order of the lines, others after them"


@pytest.mark.parametrize("name", [*OF_ALL, *OF_ALA])
def test_figures_show_the_titles_in_the_methods_colours(said: dict[str, Any], folder: Path, name: str) -> None:
    drawn = (folder / f"{name}.svg").read_text()
    for title in TITLES if name in OF_ALL else TITLES[1::2]:
        assert re.search(rf">(\([\w.]+\) )?{re.escape(title)}( \([\d.]+\))?[<:]", drawn), title
    if name in ("curves", "overhead", "scalability", "heterogeneity", "ranks"):
        assert all(colour.lower() in drawn for colour, _, _ in said["looks"].values())


def test_colours_are_given_out_by_the_lines(said: dict[str, Any]) -> None:
    look = said["looks"]
    assert look["fed-mix"][0] == looks.COLOURS[len(METHODS) % len(looks.COLOURS)]
    assert all(look[name][:2] == look[f"{name}+ala"][:2] for name in ("fed-mix", "late-mix"))
    assert len(set(map(tuple, look.values()))) == len(look)


def test_pages_show_the_titles(said: dict[str, Any], folder: Path) -> None:
    page = (folder / "page.html").read_text()
    assert all(f"{title} on Digits, Dir(0.1)" in page for title in TITLES)
