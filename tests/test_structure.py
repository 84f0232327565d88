"""Who may import whom, how large files may be, and that every command is documented."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from pflbench.cli import app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pflbench"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST, SHORTEST = 400, 40  # lines of a file
LOOSE = {"__init__", "__main__", "spec", "errors", "environment", "interrupts", "plain", "plugins", "zips", "_torchvision"}
# A file may be short where it is one of many of its kind. `engine.rng` is named in the documentation for authors of methods.
SHORT = {"methods", "partition", "models", "data", "report/figures"}
NAMED = {"engine/rng.py"}

# Part of the package -> the parts it may import. Every part may import itself; nothing imports cli.
MAY_IMPORT = {
    "spec": set(),
    "errors": set(),
    "_torchvision": set(),
    "environment": set(),
    "interrupts": set(),
    "plain": set(),
    "zips": set(),
    "plugins": {"errors"},
    "papers": set(),
    "data": {"plugins", "spec", "errors", "interrupts", "zips", "_torchvision"},
    "partition": {"spec", "errors", "zips"},
    "models": {"plugins", "spec", "errors", "_torchvision"},
    "engine": {"spec", "errors", "models", "environment", "interrupts"},
    "methods": {"engine", "plugins", "spec", "errors"},
    # Ships with the package, since third parties test with it: it drives methods as `run` does, on data of its own.
    "contract": {"data", "partition", "methods", "engine", "models", "run", "spec", "errors"},
    "store": {"papers", "plain", "spec", "errors"},
    # Of methods only their names and cards: torch stays out.
    "report": {"methods", "store", "papers", "plain", "spec", "errors"},
    "site": {"report", "store", "plain", "errors"},
    "track": {"store", "errors"},
    # The only room that knows data, engine, method and store at once.
    "run": {
        "data",
        "partition",
        "models",
        "methods",
        "engine",
        "store",
        "environment",
        "interrupts",
        "plain",
        "plugins",
        "spec",
        "errors",
    },
    # Runs methods' rounds outside the database, as `run` does inside, and keeps what they cost.
    "bench": {"engine", "methods", "partition", "run", "environment", "store", "spec", "errors"},
    # Says which runs a table needs and how they stand; the command line makes them.
    # Before a long run it times a few batches.
    "reproduce": {"report", "store", "data", "run", "bench", "methods", "models", "partition", "spec", "errors"},
    # Many runs: it plans as `run` does, and gives them to workers.
    "sweep": {"run", "interrupts", "methods", "engine", "store", "environment", "spec", "errors"},
    "__main__": {"cli"},
    "cli": {
        "bench",
        "run",
        "environment",
        "interrupts",
        "plain",
        "report",
        "reproduce",
        "site",
        "sweep",
        "track",
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
    """Of pflbench/data/tiny.py: "data"; of pflbench/spec.py: "spec"."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def nodes(module: Path) -> tuple[ast.AST, ...]:
    """The file's syntax, the module first."""
    return tuple(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))


@cache
def imports(module: Path) -> tuple[str, ...]:
    """Full names of everything a module imports, anywhere in it; `from a import b` gives "a.b"."""
    found: list[str] = []
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute here"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


def parts_imported(module: Path) -> set[str]:
    ours = {name.split(".")[1] for name in imports(module) if name.startswith("pflbench.")}
    return {name for name in ours if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()} - {part(module)}


def packages_imported(module: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(module)} - sys.stdlib_module_names - {"pflbench", "__future__"}


def identifier(module: Path) -> str:
    return str(module.relative_to(PACKAGE))


# Chamber -> chambers of the same room that it must not know. "engine" alone is what lies in the room itself.
CLOSED = {
    "engine": {"engine.loop", "engine.batched", "engine.packed"},
    "engine.loop": {"engine.batched", "engine.packed"},
    "engine.batched": {"engine.loop", "engine.packed"},
    "engine.packed": {"engine.loop"},
    "store": {"store.exchange"},
    "report": {"report.tables", "report.figures"},
    "report.tables": {"report.figures"},
}
# The table of contents says where its tables and figures are.
OPEN = {"report/declared.py"}
# What leads out of its own folder, and why: the checkout's commit; migrations, which lie beside the package in a checkout.
UPWARD = {"environment.py": "parents[1]", "store/database.py": "parents[1]"}


def chambers(module: Path) -> set[str]:
    """Of pflbench/engine/batched/steps.py: "engine.batched"; of engine/loop.py: "engine.loop" and "engine"."""
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    return {".".join(parts[:2]), *(parts[:1] if len(parts) == 2 else ())}


@pytest.mark.parametrize("module", MODULES, ids=identifier)
def test_chambers_are_closed_to_one_another(module: Path) -> None:
    closed = set().union(*(CLOSED.get(chamber, set()) for chamber in chambers(module))) - chambers(module)
    seen = {".".join(name.split(".")[1:3]) for name in imports(module) if name.startswith("pflbench.")}
    assert not seen & closed or identifier(module) in OPEN


def test_a_method_knows_engine_and_torch_alone() -> None:
    """Not the device, no metric, no database: what it may not import, `MAY_IMPORT` says; this, what it has of others."""
    for module in (PACKAGE / "methods").glob("*.py"):
        assert packages_imported(module) <= {"torch", "numpy", "pydantic", "pydantic_core"}, module


def test_reports_know_of_methods_what_their_cards_say() -> None:
    """The table of contents and the cards; no method itself, which would import torch."""
    files = {f"pflbench.methods.{path.stem}" for path in (PACKAGE / "methods").glob("*.py")} - {"pflbench.methods.cards"}
    for module in (PACKAGE / "report").rglob("*.py"):
        assert not {name for name in imports(module) if ".".join(name.split(".")[:3]) in files}, module


def test_there_is_no_further_loose_module() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} <= LOOSE


def test_no_public_class_name_occurs_twice() -> None:
    found: dict[str, list[str]] = {}
    for module in MODULES:
        for node in nodes(module)[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(identifier(module))
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


@pytest.mark.parametrize("module", MODULES, ids=identifier)
def test_executors_are_asked_by_requests_alone(module: Path) -> None:
    """Whoever asks does not look what kind of executor it is: outside the engine nobody does."""
    for node in nodes(module):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance" and part(module) != "engine":
            asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            assert not {name for name in asked if name.endswith("Executor")}
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("sgd", "walk", "head", "evaluate"):
            asked_of = ast.unparse(node.func.value)
            assert not asked_of.endswith("executor"), f"{asked_of}.{node.func.attr}: say {asked_of}.do(...)"
        if isinstance(node.func, ast.Name) and node.func.id == "getattr":
            assert not ast.unparse(node.args[0]).endswith("executor")


@pytest.mark.parametrize("module", MODULES, ids=identifier)
def test_no_path_leads_upward(module: Path) -> None:
    """Data lie in the room that reads them."""
    text = module.read_text(encoding="utf-8").replace(UPWARD.get(identifier(module), "(none)"), "")
    assert "__file__).parents" not in text
    assert "__file__).parent.parent" not in text


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
def test_no_file_is_too_long_or_too_short(module: Path) -> None:
    lines = len(module.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST
    one_of_many = str(module.parent.relative_to(PACKAGE)) in SHORT
    if module.name not in ("__init__.py", "__main__.py") and not one_of_many and identifier(module) not in NAMED:
        assert lines >= SHORTEST, "a file so short belongs to another"


@pytest.mark.parametrize("test", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.name)
def test_no_test_imports_another(test: Path) -> None:
    modules = {name.split(".")[0] for name in imports(test)}
    assert not {name for name in modules if name.startswith("test_")}
    assert len(test.read_text(encoding="utf-8").splitlines()) <= 500


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
    promised += ", models list, models show, models test"
    promised += ", data list, data verify, data download, partition show"
    promised += ", export, import, sweep run, sweep resume, sweep status, sweep list, sweep cancel"
    promised += ", track tensorboard, track mlflow, track wandb"
    promised += ", runs list, runs show, runs artifact, runs rm, db upgrade, db check, db copy, db info, doctor"
    promised += ", db backup, db repair, db journal"
    promised += ", bench list, bench compare"
    assert set(commands()) == {f"pflbench {name}" for name in promised.split(", ")}


@pytest.mark.parametrize("command", commands())
def test_every_command_is_in_the_readme_or_the_docs(command: str) -> None:
    assert any(command in page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
