"""docs/architecture.md is a map of this house: what it names is there, and no room is missing on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pflbench"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MAP = PAGE.split("```")[1]
NAMED = re.findall(r"`([\w./]+)`", PAGE)


def paths_on_the_map() -> list[Path]:
    """Its names by their depth: `engine/`, and below it `loop.py`."""
    found, above = [], [PACKAGE]
    for line in MAP.splitlines():
        names = re.findall(r"[\w./]+(?=,| |$)", re.split(r" {3,}(?=[^ ])", line.strip())[0] if line.startswith("  ") else "")
        if not names:
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        del above[depth:]
        found += [above[-1] / name for name in names]
        above.append(found[-1])
    return found


def test_what_is_on_the_map_is_there() -> None:
    found = paths_on_the_map()
    assert len(found) > 40
    assert [str(path) for path in found if not path.exists()] == []


def test_no_room_and_no_chamber_is_missing() -> None:
    rooms = {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}
    rooms -= {room for room in rooms if room.parent.parent != PACKAGE and room.parent != PACKAGE}  # what is within a chamber
    missing = rooms - {path for path in paths_on_the_map() if path.is_dir()}
    assert {str(room.relative_to(PACKAGE)) for room in missing} <= {"contract/template"}


@pytest.mark.parametrize("name", sorted({name for name in NAMED if "/" in name or name.endswith(".py")}))
def test_a_path_in_the_text_is_there(name: str) -> None:
    assert (PACKAGE / name).exists() or (ROOT / name).exists()


@pytest.mark.parametrize("name", sorted({name for name in NAMED if re.fullmatch(r"[a-z_]+\.[a-z_.]+", name)}))
def test_a_module_in_the_text_is_there(name: str) -> None:
    """`engine.requests`, or what a module has: `data.load`. `fed.sgd` and its like are of the method API."""
    first, *rest = name.split(".")
    if first in ("fed", "method") or name.endswith((".md", ".py")):
        return
    path = PACKAGE.joinpath(first, *rest)
    if not (path.is_dir() or path.with_suffix(".py").is_file()):
        place = path.parent / "__init__.py" if path.parent.is_dir() else path.parent.with_suffix(".py")
        assert re.search(rf"^(def|class) {rest[-1]}\b|^{rest[-1]}\b", place.read_text(encoding="utf-8"), re.M), name


@pytest.mark.parametrize("name", sorted({name for name in NAMED if re.fullmatch(r"[A-Z]+[a-z][A-Za-z]*", name)}))
def test_a_class_in_the_text_is_there(name: str) -> None:
    assert any(re.search(rf"^class {name}\b", path.read_text(encoding="utf-8"), re.M) for path in PACKAGE.rglob("*.py"))
