"""The five formats, read back by independent means: csv, json, and the grids cell by cell."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from sqlalchemy import Engine
from support.report_database import add_run, spec

from pflbench.report.tables.accuracy import AccuracyTable, build
from pflbench.report.tables.grid import CellText, Column, Grid, render

EVIL = "*name*\n\\input{/etc/passwd}%$x^2$ \\[*]~~a~~<img src=x>``<b>`[a](javascript:b)|_c_ &lt;"
TAGS = {"table", "thead", "tbody", "tr", "th", "td", "br", "strong", "ul", "li", "code"}
CLIENTS_50 = {"scheme": "dirichlet", "beta": 0.1, "clients": 50}
EXPECTED = {
    ("FedAvg", "MNIST"): ("98.70 ± 0.20", False),
    ("Ditto", "MNIST"): ("99.50 ± 0.10", True),
    ("FedAvg", "Cifar10"): ("60.00 ± 0.00", True),
    ("Ditto", "Cifar10"): ("-", False),
}


@pytest.fixture
def engine(store: Engine) -> Engine:
    for seed, (fedavg, ditto) in enumerate([(0.985, 0.994), (0.989, 0.996)]):
        add_run(store, spec("fedavg", seed), [fedavg])
        add_run(store, spec("ditto", seed), [ditto])
        add_run(store, spec("fedavg", seed, dataset="cifar10", lr=0.1), [0.6])
    return store


@pytest.fixture
def table(engine: Engine) -> AccuracyTable:
    return build(engine)


def test_csv_reads_back_in_full_precision(table: AccuracyTable) -> None:
    rows = list(csv.DictReader(io.StringIO(render(table.grid(), "csv"))))
    assert [(r["row"], r["setting"]) for r in rows] == [
        ("FedAvg", "MNIST, Dir(0.1)"),
        ("FedAvg", "Cifar10, Dir(0.1)"),
        ("Ditto", "MNIST, Dir(0.1)"),
    ]
    ditto = rows[2]
    assert float(ditto["mean"]) == pytest.approx(99.5, abs=1e-12)
    assert float(ditto["std"]) == pytest.approx(0.1, abs=1e-12)
    assert (ditto["n"], ditto["best"], ditto["runs"], ditto["seeds"]) == ("2", "True", "2 5", "0 1")
    assert float(ditto["paper_mean"]) == 99.64
    assert float(ditto["difference"]) == pytest.approx(-0.14)
    assert rows[1]["paper_mean"] == ""
    assert json.loads(ditto["hyperparameters"])["lam"] == 0.1


def test_json_names_the_runs_and_the_protocol(table: AccuracyTable) -> None:
    document = json.loads(render(table.grid(), "json"))
    assert document["cells"][0]["runs"] == [1, 4]
    assert document["cells"][0]["values"] == [98.5, pytest.approx(98.9)]
    assert document["cells"][0]["difference"] == pytest.approx(-0.11)
    assert [s["spec"]["data"]["name"] for s in document["settings"]] == ["mnist", "cifar10"]
    assert [s["protocol"] for s in document["settings"]] == [spec().protocol, spec(dataset="cifar10").protocol]
    assert document["notes"] == list(table.notes)


def test_markdown_cells(table: AccuracyTable) -> None:
    lines = [line for line in render(table.grid(), "markdown").splitlines() if line.startswith("|")]
    head, rule, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert head == ["Method", "MNIST<br>Dir(0.1)", "paper", "verdict", "Cifar10<br>Dir(0.1)"]
    assert rule == ["---", "---:", "---:", "---:", "---:"]
    assert rows == [
        ["FedAvg", "98.70 ± 0.20", "98.81 ± 0.01 (-0.11)", "open", "60.00 ± 0.00"],
        ["Ditto", "**99.50 ± 0.10**", "99.64 ± 0.00 (-0.14)", "open", "-"],
    ]


def test_latex_is_a_booktabs_table_of_the_same_cells(table: AccuracyTable) -> None:
    text = render(table.grid(), "latex")
    columns = re.search(r"\\begin\{tabular\}\{(l+r+)\}", text)
    assert columns is not None
    body = re.search(r"\\midrule\n(.*)\n\\bottomrule", text, re.DOTALL)
    assert body is not None
    rows = [line.removesuffix(r" \\").split(" & ") for line in body.group(1).splitlines()]
    assert all(len(row) == len(columns.group(1)) for row in rows)
    assert rows[1] == ["Ditto", r"\textbf{99.50 $\pm$ 0.10}", r"99.64 $\pm$ 0.00 ($-$0.14)", "open", "--"]
    assert r"\caption[Accuracy]{Accuracy. Accuracy in \%, pooled" in text
    assert text.count("{") == text.count("}")


def test_latex_has_a_label_and_keeps_commands_in_comments(table: AccuracyTable) -> None:
    notes = ("Times of A.", "`pflbench runs show` names B.", "Not run; next: pflbench run -m x.", "--status any shows it.")
    grid = replace(table.grid().with_runs(), title="Average ranks", notes=notes)
    text = render(grid, "latex")
    said = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    comments = [line for line in text.splitlines() if line.startswith("%")]
    assert r"\label{tab:average-ranks}" in said
    assert r"\caption[Average ranks]{Average ranks. Times of A. -{}-status any shows it." in said
    assert not re.search(r"`|pflbench", said)
    assert r"\#2, 5" in said
    assert "% `pflbench runs show` names B." in comments
    assert "% Not run; next: pflbench run -m x." in comments


def test_a_wide_latex_table_takes_both_columns_in_blocks_of_the_pages_width(table: AccuracyTable) -> None:
    def made(columns: int, head: str = "MNIST") -> str:
        column = Column((head,), (CellText("98.70 ± 0.20"), CellText("α_f Σ")))
        return render(replace(table.grid(), columns=(column,) * columns), "latex")

    narrow, wide, split = made(2), made(5), made(20)
    assert (r"\begin{table}" in narrow, r"\end{table}" in narrow, r"\begin{table*}" in narrow) == (True, True, False)
    assert (r"\begin{table*}" in wide, r"\end{table*}" in wide, wide.count(r"\begin{tabular}")) == (True, True, 1)
    blocks = re.findall(r"\\begin\{tabular\}\{l(r+)\}", split)
    assert (len(blocks) > 1, sum(map(len, blocks)), split.count(r"\caption"), split.count(r"\label")) == (True, 20, 1, 1)
    assert split.count(r"$\alpha_f$ $\Sigma$") == 20


@pytest.fixture
def evil() -> Grid:
    """EVIL in every place that text has."""
    heads = ((EVIL, "best %"), (EVIL, EVIL))
    columns = tuple(Column(head, (CellText(EVIL, best=True, runs=(1,)), CellText(EVIL, runs=(2,)))) for head in heads)
    command = f"Add {EVIL.replace('`', '')} by `pflbench run`."
    return Grid(EVIL, (EVIL, f"[2cm]{EVIL}"), columns, (EVIL, command), ({"name": EVIL, "runs": (1, 2)},))


def test_a_stored_name_is_text_in_latex(evil: Grid) -> None:
    """Beside comments, whose lines all begin so, no command but those of a table of plain names."""
    harmless = replace(
        evil,
        title="T",
        labels=("a", "b"),
        notes=("c", "d"),
        columns=tuple(Column(("e", "f"), (CellText("g", best=True), CellText("h"))) for _ in evil.columns),
    )

    def commands(table: Grid) -> set[str]:
        lines = [line for line in render(table.with_runs(), "latex").splitlines() if not line.startswith("% ")]
        return set(re.findall(r"\\(?:[A-Za-z]+|.)", "\n".join(lines)))

    escapes = {rf"\text{name}" for name in ("backslash", "asciicircum", "asciitilde", "bar")} | {rf"\{c}" for c in "{}%$&_#"}
    assert commands(evil) <= commands(harmless) | escapes | {r"\medskip", r"\footnotesize"}
    text = render(evil, "latex")
    assert not re.search(r"(\\\\|rule)\s*[\[*]", text)  # what they would take for an argument of theirs
    assert r"\label{tab:name-input-etc-passwd-" in text


def test_a_stored_name_is_text_in_markdown(evil: Grid) -> None:
    """As CommonMark with GitHub's tables has it, of which another program makes HTML."""
    made = MarkdownIt().enable(["table", "strikethrough"]).render(render(evil, "markdown"))
    assert {*re.findall(r"</?(\w+)", made)} == TAGS
    assert html.unescape(made).count(EVIL.replace("\n", " ")) == 10  # heads, labels, cells, a note
    assert re.findall("<code>(.*?)</code>", made) == ["pflbench run"]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-2+3", "@SUM(1)", "\t=1", "=cmd|'/c calc'!A1"])
def test_a_stored_name_is_no_formula_in_csv(evil: Grid, name: str) -> None:
    table = replace(evil, records=({"name": name, "runs": (1, 2), "mean": -0.5, "text": "-0.5", "none": None},))
    (line,) = csv.DictReader(io.StringIO(render(table, "csv")))
    quoted = name if name == "+1" else f"'{name}"
    assert line == {"name": quoted, "runs": "1 2", "mean": "-0.5", "text": "-0.5", "none": ""}


def test_what_does_not_fit_is_split_between_settings_and_every_part_names_its_own() -> None:
    def column(*head: str, beside: bool = False) -> Column:
        return Column(head, (CellText("12.34 ± 0.56"),), beside)

    columns = (
        column("MNIST", "Dir(0.1)"),
        column("paper", beside=True),
        column("Tiny-ImageNet, other content 1a2b3c", "Dir(0.1)"),
        column("paper", beside=True),
        column("verdict", beside=True),
    )
    table = Grid("Accuracy", ("FedAvg",), columns, (), ())

    def heads(width: int) -> list[list[str]]:
        """Of each block the words above its line."""
        parts = render(table, width=width).split("\n\n")
        return [part.partition("─")[0].split() for part in parts if part.strip()]

    tiny = ["Tiny-ImageNet", "other", "content", "1a2b3c", "Dir(0.1)"]
    assert heads(60) == [["MNIST", "Dir(0.1)", "paper"], [*tiny, "paper"], [*tiny, "verdict"]]
    assert heads(80) == [["MNIST", "Dir(0.1)", "paper"], [*tiny, "paper", "verdict"]]
    assert len(heads(120)) == 1
