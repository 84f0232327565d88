"""The examples in README.md and docs/ are what the commands say: they are run here, in the order of the pages.

A block with lines that begin with `$ pflbench` has the commands and what they print; `...` stands for lines that are left out.
A block of Python that begins with `# name.py` is that file. Points in time may differ, and decimal numbers by a point: other
machines round otherwise. The commands without `$` are typed as well, with --dry-run where they would train or change something.
"""

from __future__ import annotations

import lzma
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import typer.main
from support.command import ROOT, Shell
from support.vision_files import put_pfllib, put_set

from pflbench.cli import app
from pflbench.reproduce import forecast

DOCS = ROOT / "docs"
README = ROOT / "README.md"
USAGE = tuple(DOCS / f"{name}.md" for name in ("running", "data", "tables-and-figures", "database"))
AUTHORS = (DOCS / "add-a-method.md", DOCS / "own-model.md")
TUNING = DOCS / "tuning.md"
PAGES = (README, *USAGE, *AUTHORS, TUNING)
ALL = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")))
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z")
POINT = 1.0


def examples(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Commands and what they print, by the page."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if block.startswith("$ "):
            for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *printed = example.split("\n")
                yield command, "\n".join(printed).strip("\n").split("\n")


def commands(page: Path) -> Iterator[str]:
    """All others: lines of a block that begin with `pflbench`, joined where they go on."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").split("\n"):
            for part in line.removeprefix("$ ").partition("  #")[0].split("; "):
                if part.startswith("pflbench "):
                    yield re.split(r" [>|] ", part)[0]


def same(shown: str, printed: str) -> bool:
    one, other = shown.split(), printed.split()
    return len(one) == len(other) and all(map(close, one, other))


def close(one: str, other: str) -> bool:
    if MOMENT.fullmatch(one):
        return MOMENT.fullmatch(other) is not None
    a, b = (re.fullmatch(r"(\d+\.\d+)(,?)", word) for word in (one, other))
    return one == other or (a is not None and b is not None and a[2] == b[2] and abs(float(a[1]) - float(b[1])) <= POINT)


def differs(shown: list[str], printed: list[str]) -> str:
    """What is shown and not printed; nothing where all of it is."""
    rest = list(printed)
    for k, line in enumerate(shown):
        if line == "...":
            return "" if k + 1 == len(shown) else differs_after(shown[k + 1 :], rest)
        if not rest or not same(line, rest.pop(0)):
            return f"{line!r} is not what is printed:\n" + "\n".join(printed)
    return f"more is printed: {rest}" if rest else ""


def differs_after(shown: list[str], rest: list[str]) -> str:
    tails = (differs(shown, rest[k:]) for k in range(len(rest) + 1))
    return next((told for told in tails if not told), f"{shown!r} is not in {rest!r}")


GROUPS = [USAGE, *((page,) for page in (README, *AUTHORS, TUNING))]


@pytest.mark.slow
@pytest.mark.parametrize("pages", GROUPS, ids=["usage", "readme", "methods", "models", "tuning"])
def test_the_examples_are_what_is_printed(shell: Shell, pages: tuple[Path, ...]) -> None:
    wrong = []
    for page in pages:
        for text, name in FILE.findall(page.read_text(encoding="utf-8")):
            Path(name).write_text(text, encoding="utf-8")
        for command, shown in examples(page):
            if not command.startswith("pflbench "):
                subprocess.run(command, shell=True, check=True)
                continue
            done = shell(*shlex.split(command)[1:])
            # What goes to stdout and what to stderr may stand in either order.
            told = [
                differs(shown, "".join(printed).strip("\n").split("\n"))
                for printed in ((done.out, done.err), (done.err, done.out))
            ]
            if all(told):
                wrong.append(f"{page.name}: $ {command}\n{told[0]}")
            expected = 2 if any(line.startswith("Error: ") for line in shown) else 0
            if done.code != expected:
                wrong.append(f"{page.name}: $ {command}\nends with exit code {done.code}:\n{done.err}")
    assert not wrong, "\n\n".join(wrong)


def test_no_page_has_examples_that_are_not_run() -> None:
    assert [page.name for page in ALL if page not in PAGES and any(True for _ in examples(page))] == []
    assert sum(1 for page in PAGES for _ in examples(page)) > 7


# Of the following, what is written is tested where there are servers, signals and hardware, or above.
ELSEWHERE = ("serve", "track", "doctor --gpu", "data download", "db copy", "methods")
ELSEWHERE += ("table new-clients", "table evidence", "table time-to-accuracy", "runs reproduce", "runs bundle", "runs verify")
ELSEWHERE += tuple(f"sweep {command}" for command in ("status", "list", "cancel", "resume", "work"))
DRY = ("run", "tune", "sweep", "reproduce", "import")
PLACES = {"pfllib:PATH": "pfllib:MNIST", "folder:PATH": "folder:cifar10-6000", "METHOD": "fedavg", "SEED": "0"}
PLACES |= {"gpu.db laptop.db": "cifar10-6000.db mnist-6000.db", "results/MNIST_FedALA_test_*.h5": "cifar10-6000.db"}


REFUSED = ("was run yet", "none kept trajectory", "no reference series", "no study", "Unknown method 'fedvg'")  # as the pages say


def lay_out_data() -> None:
    """Small data under the names that the pages have, and the stored databases."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (600, 28, 28), np.uint8), np.arange(600) % 10
    np.savez("mnist-6000.npz", x=images, y=labels)
    put_set(Path("data/MNIST/raw"), ("train", "t10k"), (list(range(10)) * 300, list(range(10)) * 20))
    for folder in ("cifar10-6000", "cifar10-12000", "cifar10-jpeg"):
        for k in range(10):
            Path(folder, str(k)).mkdir(parents=True)
            for n in range(60):
                pixels = random.integers(0, 256, (32, 32, 3), np.uint8)
                Path(folder, str(k), f"{n}.ppm").write_bytes(b"P6 32 32 255\n" + pixels.tobytes())
    put_pfllib(Path("MNIST"), side=28, num_classes=10, non_iid=True, balance=False, partition="dir", alpha=0.1)
    agnews = ("agnews-quick", "agnews-2000", "agnews-dir1", "honest-agnews")
    cifar10 = ("cifar10-6000", "cifar10-12000", "honest-cifar10")
    mnist = ("mnist-6000", "mnist-authors", "elastic-mnist", "figure3", "figure4")
    for name in (*agnews, *cifar10, *mnist):
        Path(f"{name}.db").write_bytes(lzma.decompress((ROOT / "reports" / f"{name}.db.xz").read_bytes()))
    for name in ("clients", "evidence"):
        Path(f"{name}.db").write_bytes(lzma.decompress((ROOT / "reports" / "digits.db.xz").read_bytes()))
    Path("examples").symlink_to(ROOT / "examples")
    Path("reports").mkdir()


def typed(page: Path) -> Iterator[list[str]]:
    text = page.read_text(encoding="utf-8")
    variables = dict(re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE))
    for command in commands(page):
        for name, value in variables.items():
            command = command.replace(f"${name}", value)
        for name, value in PLACES.items():
            command = command.replace(name, value)
        words = shlex.split(command, comments=True)[1:]
        if not " ".join(words).startswith(ELSEWHERE):
            yield [*words, *["--dry-run"] * (words[0] in DRY and "--dry-run" not in words)]


@pytest.mark.slow
def test_every_command_is_accepted(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each dry run would measure rounds of whatever these data have no time of: tests/reproduce does.
    monkeypatch.setattr(forecast, "_timed", lambda spec, setting, how, batches: (batches, float(batches)))
    lay_out_data()
    assert shell("methods", "new", "fed-mix").code == 0
    Path("heads.yaml").write_text(re.search(r"^```yaml\n(name: heads.*?)^```", (DOCS / "sweeps.md").read_text(), re.M | re.S)[1])
    for text, name in FILE.findall(AUTHORS[1].read_text(encoding="utf-8")):
        Path(name).write_text(text, encoding="utf-8")
    assert shell("run", "-m", "fedala", "-m", "fedavg", "-d", "mnist", "-r", "1", "--model", "logreg").code == 0
    pages = {tuple(words): page.name for page in ALL for words in typed(page)}
    wrong = []
    for words, page in pages.items():
        done = shell(*words)
        if done.code and not any(text in done.err for text in REFUSED):
            wrong.append(f"{page}: pflbench {shlex.join(words)}\n{done.err}")
    assert not wrong, "\n".join(wrong)


def cases() -> list[str]:
    return list(dict.fromkeys(command for page in ALL for command in commands(page)))


@pytest.mark.parametrize("command", cases())
def test_commands_have_the_options_that_are_written(command: str) -> None:
    _, *words = shlex.split(re.sub(r"\$\{?\w+\}?", "x", command))
    at = typer.main.get_command(app)
    while children := getattr(at, "commands", None):
        if words[0] not in children and at.invoke_without_command:
            break
        if words[0] not in children and "run" in children:  # `sweep heads.yaml` is `sweep run heads.yaml`
            words.insert(0, "run")
        name = words.pop(0)
        assert name in children, command
        at = children[name]
    known = {option for parameter in at.params for option in (*parameter.opts, *parameter.secondary_opts)} | {"-h", "--help"}
    for word in words:
        if re.match(r"--?[a-z]", word):
            assert word.partition("=")[0] in known, command


def test_a_link_leads_to_a_file_of_the_repository() -> None:
    for page in ALL:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[\w-]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (page.parent / target).exists(), (page.name, target)


def test_comparing_notices_what_went_stale() -> None:
    assert not differs(["run 1  a1  84.96 %,", "..."], ["run 1 a1 85.10 %,", "run 2"])
    assert differs(["run 1  a1  84.96 %"], ["run 1  a2  84.96 %"])
    assert differs(["best 84.96 %"], ["best 86.96 %"])
    assert differs(["Valid: ditto."], ["Valid: ditto, local."])
    assert differs(["a"], ["a", "b"])
    assert not differs(["a", "...", "c"], ["a", "b", "b", "c"])
    assert differs(["a", "...", "c"], ["a", "b"])
