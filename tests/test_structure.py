"""Who may import whom, and that every command is documented. Each rule is one test, which lists all that break it."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from pflbench.cli import app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pflbench"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = {"pflbench": 400, "tests": 500}  # lines of a file: beyond that there is a warning
# Part of the package -> the parts it may import. Every part may import itself; nothing imports cli.
MAY_IMPORT = {
    "spec": set(),
    "errors": set(),
    "_torchvision": set(),
    "environment": set(),
    "interrupts": set(),
    "plain": set(),
    "plugins": {"data", "methods", "models", "spec", "errors"},
    "papers": set(),
    "data": {"plugins", "spec", "errors", "environment", "interrupts", "_torchvision"},
    "partition": {"spec", "errors"},
    "models": {"plugins", "spec", "errors", "_torchvision"},
    "engine": {"spec", "errors", "models", "environment", "interrupts"},
    "methods": {"engine", "plugins", "spec", "errors"},
    # Ships with the package, since third parties test with it: it drives methods as `run` does, on data of its own.
    "contract": {"data", "partition", "methods", "engine", "models", "plugins", "run", "spec", "errors"},
    "store": {"papers", "plain", "spec", "errors"},
    # Of methods and models only what their tables of contents say: torch stays out.
    "report": {"methods", "models", "store", "papers", "plain", "spec", "errors"},
    "site": {"models", "report", "store", "plain", "errors"},
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
    # Says which runs a table needs and how they stand; the command line makes them.
    # Before a long run it times a few batches.
    "reproduce": {"report", "store", "data", "run", "methods", "models", "partition", "spec", "errors"},
    # Many runs: it plans as `run` does, and gives them to workers.
    "sweep": {"plugins", "run", "interrupts", "methods", "engine", "store", "environment", "plain", "spec", "errors"},
    "__main__": {"cli"},
}
MAY_IMPORT["cli"] = MAY_IMPORT.keys() - {"_torchvision", "papers", "engine", "__main__"}  # it computes nothing
# Other people's packages, where a part is held to few of them or must do without one.
ONLY = {
    "partition": {"numpy"},
    "errors": set(),
    "spec": {"pydantic"},
    "cli": {"typer", "rich", "sqlalchemy"},
    "methods": {"torch", "numpy", "scipy", "pydantic", "pydantic_core"},
}
WITHOUT = {room: {"torch", "torchvision"} for room in ("store", "report", "site")}


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
    "engine": {"engine.loop_executor", "engine.batched", "engine.packed"},
    "engine.loop_executor": {"engine.batched", "engine.packed"},
    "engine.batched": {"engine.loop_executor", "engine.packed"},
    "engine.packed": {"engine.loop_executor"},
    "store": {"store.exchange"},
    "report": {"report.tables", "report.figures"},
    "report.tables": {"report.figures"},
}
# The table of contents says where its tables and figures are.
OPEN = {"report/declared.py"}
# What leads out of its own folder, and why: the checkout's commit; migrations, which lie beside the package in a checkout.
UPWARD = {"environment.py": "parents[1]", "store/database.py": "parents[1]"}


def chambers(module: Path) -> set[str]:
    """Of pflbench/engine/batched/layout.py: "engine.batched"; of engine/loop_executor.py: "engine.loop_executor" and "engine"."""
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    return {".".join(parts[:2]), *(parts[:1] if len(parts) == 2 else ())}


def offenders(found: Callable[[Path], Iterable[str]]) -> dict[str, list[str]]:
    """What breaks a rule, by file."""
    broken = {identifier(module): sorted(found(module)) for module in MODULES}
    return {module: what for module, what in broken.items() if what}


def test_chambers_are_closed_to_one_another() -> None:
    def seen(module: Path) -> set[str]:
        closed = set().union(*(CLOSED.get(chamber, set()) for chamber in chambers(module))) - chambers(module)
        known = {".".join(name.split(".")[1:3]) for name in imports(module) if name.startswith("pflbench.")}
        return set() if identifier(module) in OPEN else known & closed

    assert offenders(seen) == {}


def test_reports_know_of_methods_what_their_cards_say() -> None:
    """The table of contents and the cards; no method itself, which would import torch."""
    files = {f"pflbench.methods.{path.stem}" for path in (PACKAGE / "methods").glob("*.py")} - {"pflbench.methods.cards"}
    for module in (PACKAGE / "report").rglob("*.py"):
        assert not {name for name in imports(module) if ".".join(name.split(".")[:3]) in files}, module


def test_no_public_class_name_occurs_twice() -> None:
    found: dict[str, list[str]] = {}
    for module in MODULES:
        for node in nodes(module)[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(identifier(module))
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_executors_are_asked_by_requests_alone() -> None:
    """Whoever asks does not look what kind of executor it is: outside the engine nobody does."""

    def asked_otherwise(module: Path) -> Iterator[str]:
        for node in nodes(module):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            kind_is_asked = name == "isinstance" and part(module) != "engine" and "Executor" in ast.unparse(node.args[1])
            looked_into = name == "getattr" and ast.unparse(node.args[0]).endswith("executor")
            called = isinstance(node.func, ast.Attribute) and node.func.attr in ("sgd", "scan", "head", "evaluate")
            if kind_is_asked or looked_into or (called and ast.unparse(node.func.value).endswith("executor")):
                yield f"{ast.unparse(node)}: say executor.do(...)"

    assert offenders(asked_otherwise) == {}


def test_no_path_leads_upward() -> None:
    """Data lie in the room that reads them."""

    def upward(module: Path) -> list[str]:
        text = module.read_text(encoding="utf-8").replace(UPWARD.get(identifier(module), "(none)"), "")
        return [way for way in ("__file__).parents", "__file__).parent.parent") if way in text]

    assert offenders(upward) == {}


def test_rules_know_every_part() -> None:
    """A new room, or a loose module beside the rooms, says first what it may import."""
    assert {part(module) for module in MODULES} == {*MAY_IMPORT, "__init__"}


def test_imports_keep_to_the_rules() -> None:
    def forbidden(module: Path) -> set[str]:
        here, packages = part(module), packages_imported(module)
        beyond = packages - ONLY.get(here, packages) | packages & WITHOUT.get(here, set())
        beyond |= packages & {"pytest"} if here != "contract" else set()
        return beyond | parts_imported(module) - MAY_IMPORT.get(here, set())

    assert offenders(forbidden) == {}


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


def test_a_file_is_read_in_one_go() -> None:
    """No failure: a file may have its reason. Whoever changes it is told."""
    for folder, most in LONGEST.items():
        for path in (ROOT / folder).rglob("*.py"):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > most:
                warnings.warn(f"{path.relative_to(ROOT)} has {lines} lines, more than {most}", stacklevel=1)


def test_no_test_imports_another() -> None:
    tests = (ROOT / "tests").rglob("*.py")
    found = {str(test): [name for name in imports(test) if name.startswith("test_")] for test in tests}
    assert {test: others for test, others in found.items() if others} == {}


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


def test_every_command_is_in_the_readme_or_the_docs() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    assert [command for command in commands() if not any(command in page for page in pages)] == []
