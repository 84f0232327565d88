"""Who may import whom, how large files may be, and that every command is documented."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from pflbench.cli import app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pflbench"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 400

# Part of the package -> the parts it may import. Every part may import itself; nothing imports cli.
MAY_IMPORT = {
    "spec": set(),
    "errors": set(),
    "_torchvision": set(),
    "environment": set(),
    "papers": set(),
    "data": {"spec", "errors", "_torchvision"},
    "partition": {"spec", "errors"},
    "models": {"errors", "_torchvision"},
    "engine": {"spec", "errors", "models", "environment"},
    "methods": {"engine", "spec", "errors"},
    # Ships with the package, since third parties test with it: it drives methods as `run` does, on data of its own.
    "contract": {"methods", "engine", "models", "run", "spec", "errors"},
    "store": {"papers", "spec", "errors"},
    # Of methods only their names and cards: torch stays out.
    "report": {"methods", "store", "papers", "spec", "errors"},
    "site": {"report", "store", "errors"},
    # The only room that knows data, engine, method and store at once. Of a figure's surface it computes what runs leave open.
    "run": {"data", "partition", "models", "methods", "engine", "store", "report", "environment", "spec", "errors"},
    # Runs methods' rounds outside the database, as `run` does inside, and keeps what they cost.
    "bench": {"engine", "methods", "partition", "run", "environment", "store", "spec", "errors"},
    # Says which runs a table needs and how they stand; the command line makes them.
    # Before a long run it times a few batches.
    "reproduce": {"report", "store", "data", "run", "bench", "methods", "models", "partition", "spec", "errors"},
    "__main__": {"cli"},
    "cli": {
        "bench",
        "run",
        "environment",
        "report",
        "reproduce",
        "site",
        "data",
        "partition",
        "models",
        "methods",
        "contract",
        "store",
        "spec",
        "errors",
    },
}
# Other people's packages, where a part is held to few of them or must do without one.
ONLY = {"partition": {"numpy"}, "errors": set(), "spec": {"pydantic"}, "cli": {"typer", "rich", "sqlalchemy"}}
WITHOUT = {"store": {"torch", "torchvision"}, "report": {"torch", "torchvision"}, "site": {"torch", "torchvision"}}


def part(module: Path) -> str:
    """Of pflbench/data/tiny.py: "data"; of pflbench/run.py: "run"."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(module: Path) -> Iterator[str]:
    """Full names of everything a module imports, anywhere in it; `from a import b` gives "a.b"."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_imported(module: Path) -> set[str]:
    ours = {name.split(".")[1] for name in imports(module) if name.startswith("pflbench.")}
    return {name for name in ours if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()} - {part(module)}


def packages_imported(module: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(module)} - sys.stdlib_module_names - {"pflbench", "__future__"}


def identifier(module: Path) -> str:
    return str(module.relative_to(PACKAGE))


def test_rules_know_every_part() -> None:
    assert {part(module) for module in MODULES} == {*MAY_IMPORT, "__init__"}


@pytest.mark.parametrize("module", MODULES, ids=identifier)
def test_imports_keep_to_the_rules(module: Path) -> None:
    here = part(module)
    assert parts_imported(module) <= MAY_IMPORT.get(here, set())
    packages = packages_imported(module)
    assert packages <= ONLY.get(here, packages)
    assert not packages & WITHOUT.get(here, set())


def test_pytest_is_no_dependency_beyond_the_contract_suite() -> None:
    users = {part(module) for module in MODULES if "pytest" in packages_imported(module)}
    assert users == {"contract"}


def test_a_forbidden_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules above are worth something only if the reader sees imports in every form and place."""
    bad = tmp_path / "pflbench" / "methods" / "bad.py"
    bad.parent.mkdir(parents=True)
    bad.write_text("from pflbench import store\ndef f():\n    import pflbench.report.labels\n    from torch.nn import Linear\n")
    for name in ("store", "report"):
        (tmp_path / "pflbench" / name).mkdir()
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "pflbench")
    assert parts_imported(bad) == {"store", "report"}
    assert packages_imported(bad) == {"torch"}


@pytest.mark.parametrize("module", MODULES, ids=identifier)
def test_no_file_is_too_long(module: Path) -> None:
    assert len(module.read_text(encoding="utf-8").splitlines()) <= LONGEST


def commands() -> list[str]:
    """Every command as it is typed: "pflbench runs list"."""

    def walk(command: object, name: str) -> Iterator[str]:
        children = getattr(command, "commands", None)
        if children is None:
            yield name
        else:
            for child, below in children.items():
                yield from walk(below, f"{name} {child}")

    return list(walk(typer.main.get_command(app), "pflbench"))


def test_there_are_the_promised_commands() -> None:
    promised = "run, table, plot, reproduce, report, serve, methods list, methods show, methods new, methods test"
    promised += ", data list, data verify, data download, partition show"
    promised += ", export, import"
    promised += ", runs list, runs show, runs artifact, runs rm, db upgrade, db check, db info, doctor"
    promised += ", bench list, bench compare"
    assert set(commands()) == {f"pflbench {name}" for name in promised.split(", ")}


@pytest.mark.parametrize("command", commands())
def test_every_command_is_in_the_readme_or_the_docs(command: str) -> None:
    assert any(command in page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
