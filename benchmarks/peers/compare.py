"""Runs tools on tasks one after another and appends a row for each run; or makes a table of the rows.

    python compare.py TASK... --tools pflbench,plain,pfllib,fluke --methods fedavg --rounds 6 --repeats 5 -o rows.csv
    python compare.py --table rows.csv [--into PAGE]
    python compare.py --agree rows.csv

All tools run once, then all again, each in a process of its own with one thread; repeat k has seed k. Rows that the file has are
not run again, so that an interrupted command goes on; --again runs those anew that ended with an error.

The table has means over the rounds after the first, which warms up. Ratios are a tool's CPU seconds over pflbench's, as ratios of
means over the repeats, with 95 % bootstrap intervals over pairs of the same repeat. A tool that did not compute as many gradients
as pflbench, or steps where it cannot count them, is listed as not the same work. --into writes the table between a page's marker
comments. --agree prints by how many points a tool's accuracy differs from pflbench's, as means over seeds, with twice their
standard error.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
OURS = "pflbench"
WITHOUT_ENVIRONMENT = (OURS, "plain")
MARKERS = ("<!-- table of compare.py -->", "<!-- end of the table -->")
MEANS = ("train_cpu_s", "eval_cpu_s", "train_wall_s", "eval_wall_s")
COLUMNS = (
    "task", "method", "tool", "repeat", "rounds", "version", "steps_per_round", "gradients_per_round", "start_cpu_s", *MEANS,
    "peak_rss_mib", "accuracy", "error", "begun", "raw",
)  # fmt: skip
DRAWS = 10_000
SHOWN = 5  # rounds in a row of --agree

Key = tuple[str, str, str, int, int]
"""Task, method, tool, repeat, rounds."""


@dataclass(frozen=True)
class Row:
    """One run of an adapter: its JSON object."""

    task: str
    method: str
    tool: str
    repeat: int
    rounds: int
    found: dict[str, Any]

    @property
    def key(self) -> Key:
        return self.task, self.method, self.tool, self.repeat, self.rounds

    @property
    def error(self) -> str:
        return self.found.get("error") or ""

    def mean(self, name: str) -> float:
        """Over the rounds after the first, if there are several."""
        values = self.found[name]
        return float(np.mean(values[1:] or values))

    @property
    def work(self) -> tuple[str, Any]:
        """What is compared to see that tools do the same: a unit, and its number in a round after the first."""
        unit = "gradients" if np.any(self.found.get("gradients_per_round")) else "steps"
        return unit, self.count(unit)

    def count(self, unit: str) -> int | list[int]:
        """A number if it is equal in all rounds after the first, in which pflbench also counts FLOPs, else their list."""
        found = self.found[f"{unit}_per_round"]
        later = (found[1:] or found) if isinstance(found, list) else [found]
        return later[0] if len(set(later)) == 1 else later

    def as_columns(self, begun: str) -> dict[str, Any]:
        found = self.found
        values = {name: found.get(name) for name in COLUMNS}
        if not self.error:
            values |= {name: round(self.mean(name), 6) for name in MEANS}
            values["accuracy"] = found["accuracy"][-1]
        key = dict(zip(("task", "method", "tool", "repeat", "rounds"), self.key, strict=True))
        return {**values, **key, "begun": begun, "raw": json.dumps(found)}


# -- running ------------------------------------------------------------------------------------------------------------


def interpreter(tool: str, envs: Path) -> Path:
    """Raises FileNotFoundError, with what to do, for a tool without an environment."""
    if tool in WITHOUT_ENVIRONMENT:
        return Path(sys.executable)
    found = envs / tool / "bin" / "python"
    if not found.exists():
        raise FileNotFoundError(f"{tool} has no environment in {envs}: python make_env.py {tool} --envs {envs}")
    return found


def run(tool: str, task: Path, method: str, repeat: int, options: argparse.Namespace) -> Row:
    """Runs an adapter. One that dies or takes too long has an error for its result."""
    environment = {k: v for k, v in os.environ.items() if tool in WITHOUT_ENVIRONMENT or k != "PYTHONPATH"}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "found.json"
        command = [str(interpreter(tool, options.envs)), str(HERE / f"arm_{tool}.py"), str(task), method]
        command += ["--rounds", str(options.rounds), "--seed", str(repeat), "-o", str(output)]
        log = (Path(folder) / "log").open("w+")
        try:
            status = subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder, timeout=options.timeout
            ).returncode
            problem = f"the adapter ended with status {status}"
        except subprocess.TimeoutExpired:
            problem = f"not done after {options.timeout:g} seconds"
        log.seek(0)
        said = log.read()[-2000:]
        found = json.loads(output.read_text()) if output.exists() else {"error": problem}
    if found["error"] and options.verbose:
        print(said, file=sys.stderr)
    return Row(task.name, method, tool, repeat, options.rounds, found)


def append(path: Path, row: Row, begun: str) -> None:
    is_new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerow(row.as_columns(begun))


def measure(options: argparse.Namespace) -> None:
    """Runs what the file does not have."""
    have = {row.key for row in (read(options.output) if options.output.exists() else []) if not (options.again and row.error)}
    arms = product(range(options.repeats), options.tasks, options.methods.split(","), options.tools.split(","))
    tasks = {task.name: task for task in options.tasks}
    if len(tasks) < len(options.tasks):
        raise SystemExit("Error: two tasks have the same name; a row names its task by the folder's name.")
    for repeat, task, method, tool in arms:
        if (task.name, method, tool, repeat, options.rounds) in have:
            continue
        begun, clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.perf_counter()
        try:
            row = run(tool, task.resolve(), method, repeat, options)
        except FileNotFoundError as missing:
            print(f"{tool}: left out, {missing}", file=sys.stderr)
            continue
        append(options.output, row, begun)
        told = row.error or f"train {row.mean('train_cpu_s'):.3f} eval {row.mean('eval_cpu_s'):.3f} CPU s a round"
        print(f"{task.name} {method} {tool} repeat {repeat}: {told} ({time.perf_counter() - clock:.0f} s)", flush=True)


# -- tables -------------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[Row]:
    """The rows, each the last one with its key."""
    csv.field_size_limit(2**27)
    found: dict[Key, Row] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            if not line["raw"]:  # a line that was cut off by the end of the process
                continue
            key = line["task"], line["method"], line["tool"], int(line["repeat"]), int(line["rounds"])
            found[key] = Row(*key, json.loads(line["raw"]))
    return list(found.values())


def groups(rows: Iterable[Row]) -> Iterator[tuple[tuple[str, str, int], dict[str, list[Row]]]]:
    """By task, method and rounds the rows of each tool, in the order of the file."""
    found: dict[tuple[str, str, int], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row.task, row.method, row.rounds][row.tool].append(row)
    yield from found.items()


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """Of the means, with the 2.5 % and 97.5 % quantiles over draws of pairs (theirs[k], ours[k])."""
    a, b = np.asarray(theirs, float), np.asarray(ours, float)
    draws = np.random.default_rng(0).integers(len(a), size=(DRAWS, len(a)))
    low, high = np.quantile(a[draws].mean(1) / b[draws].mean(1), [0.025, 0.975])
    return float(a.mean() / b.mean()), float(low), float(high)


def difference_of_work(row: Row, ours: Row) -> str:
    """Why two runs are not the same work; empty if they are."""
    (unit, number), (our_unit, our_number) = row.work, ours.work
    if unit != our_unit:  # a tool whose gradients are computed in other processes
        unit, number, our_number = "steps", row.count("steps"), ours.count("steps")
    if number == our_number:
        return ""
    return f"not the same work: {_shortly(number)} {unit} a round, {OURS} {_shortly(our_number)}"


def _shortly(number: int | list[int]) -> str:
    return f"{min(number)} to {max(number)}" if isinstance(number, list) else str(number)


HEADER = (
    "| task | method | tool | training | evaluation | training, ratio | round, ratio | steps | start | MiB |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def table(rows: Sequence[Row]) -> str:
    """In Markdown: CPU seconds per round and of the start, ratios to pflbench, then what could not be measured."""
    lines, reasons = [HEADER], []
    for (task, method, _), tools in groups(rows):
        ours = {row.repeat: row for row in tools.get(OURS, []) if not row.error}
        for tool, found in tools.items():
            done = [row for row in found if not row.error]
            if not done:
                reasons.append(f"* {task}, {method}, {tool}: {found[-1].error.splitlines()[0]}")
                continue
            reference = next(iter(ours.values()), None)
            different = difference_of_work(done[0], reference) if reference else ""
            if different:
                reasons.append(f"* {task}, {method}, {tool}: {different}")
            lines.append(_line(task, method, tool, done, ours, bool(different)))
    return "\n".join([*lines, *(["", *reasons] if reasons else [])])


def _line(task: str, method: str, tool: str, done: list[Row], ours: dict[int, Row], different: bool) -> str:
    def mean(name: str) -> float:
        return float(np.mean([row.mean(name) for row in done]))

    pairs = [(row, ours[row.repeat]) for row in done if row.repeat in ours]
    ratios = ["", ""]
    if pairs and tool != OURS:
        for i, names in enumerate((MEANS[:1], MEANS[:2])):
            theirs, our = ([sum(map(row.mean, names)) for row in side] for side in zip(*pairs, strict=True))
            ratios[i] = "{:.2f} ({:.2f}-{:.2f})".format(*ratio(theirs, our)) + " !" * different
    start, memory = (float(np.mean([row.found[name] for row in done])) for name in ("start_cpu_s", "peak_rss_mib"))
    steps = _shortly(done[0].count("steps"))
    cells = [
        task,
        method,
        tool,
        f"{mean('train_cpu_s'):.3g}",
        f"{mean('eval_cpu_s'):.3g}",
        *ratios,
        steps,
        f"{start:.1f}",
        f"{memory:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def agreement(rows: Sequence[Row]) -> str:
    """Differences of accuracy from pflbench's in points, as means over seeds, with twice their standard error."""
    lines = []
    for (task, method, rounds), tools in groups(rows):
        curves = {tool: _curves(found) for tool, found in tools.items()}
        if OURS not in curves or not len(curves[OURS]):
            continue
        at = sorted({1, *(rounds * k // (SHOWN - 1) for k in range(1, SHOWN))} - {0})
        lines += [f"\n| {task}, {method} | seeds | " + " | ".join(f"round {t}" for t in at) + " | all rounds |"]
        lines += ["| --- | --- |" + " --- |" * (len(at) + 1)]
        ours = curves.pop(OURS)
        shown = [f"{ours[:, t - 1].mean():.1f} %" for t in at]
        lines.append(f"| {OURS} | {len(ours)} | " + " | ".join([*shown, f"{ours.mean():.1f} %"]) + " |")
        for tool, theirs in curves.items():
            if len(theirs):
                shown = [_difference(theirs[:, t - 1], ours[:, t - 1]) for t in at]
                shown.append(_difference(theirs.mean(1), ours.mean(1)))
                lines.append(f"| {tool} | {len(theirs)} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _curves(rows: Iterable[Row]) -> Any:
    """Accuracy [seeds, rounds] of the runs that ended well."""
    return np.array([row.found["accuracy"] for row in rows if not row.error])


def _difference(theirs: Any, ours: Any) -> str:
    """Of the means over seeds; without a standard error if there is one seed only."""
    difference = f"{theirs.mean() - ours.mean():+.2f}"
    if min(len(theirs), len(ours)) < 2:
        return difference
    error = np.sqrt(theirs.var(ddof=1) / len(theirs) + ours.var(ddof=1) / len(ours))
    return f"{difference} ± {2 * error:.2f}"


def put_into(page: Path, made: str) -> None:
    """Replaces what stands between the markers."""
    before, begin, rest = page.read_text().partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not begin or not end:
        raise SystemExit(f"Error: {page} does not have the lines {MARKERS[0]} and {MARKERS[1]}.")
    page.write_text(f"{before}{begin}\n\n{made}\n\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", type=Path, help="folders that task.py wrote")
    parser.add_argument("--tools", default="pflbench,plain,pfllib,fluke")
    parser.add_argument("--methods", default="fedavg", help="METHOD:PRESET for a preset of pflbench's, such as ditto:pfllib2025")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--envs", type=Path, default=HERE / "envs")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for each run")
    parser.add_argument("--again", action="store_true", help="runs that ended with an error are run again")
    parser.add_argument("--verbose", action="store_true", help="shows what a tool printed before an error")
    parser.add_argument("-o", "--output", type=Path, default=Path("rows.csv"))
    parser.add_argument("--table", type=Path, metavar="ROWS")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="with --table: writes it into this page")
    parser.add_argument("--agree", type=Path, metavar="ROWS")
    options = parser.parse_args()
    if options.table:
        made = table(read(options.table))
        print(made)
        if options.into:
            put_into(options.into, made)
    elif options.agree:
        print(agreement(read(options.agree)))
    elif options.tasks:
        options.envs = options.envs.resolve()
        measure(options)
    else:
        parser.error("name a task, or --table or --agree")


if __name__ == "__main__":
    main()
