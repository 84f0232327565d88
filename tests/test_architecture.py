"""docs/architecture.md is a map of this house: what it names is there, and no room is missing on it."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_what_the_text_names_is_there() -> None:
    """Paths; modules, as `engine.requests`, or what they have: `data.load`; classes. `fed.sgd` is of the method API."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))

    def exists(name: str) -> bool:
        if "/" in name or name.endswith(".py"):
            return (PACKAGE / name).exists() or (ROOT / name).exists()
        if re.fullmatch(r"[A-Z]+[a-z][A-Za-z]*", name):
            return re.search(rf"^class {name}\b", code, re.M) is not None
        if not re.fullmatch(r"[a-z_]+\.[a-z_.]+", name) or name.startswith(("fed.", "method.")) or name.endswith(".md"):
            return True
        path = PACKAGE.joinpath(*name.split("."))
        if path.is_dir() or path.with_suffix(".py").is_file():
            return True
        place = path.parent / "__init__.py" if path.parent.is_dir() else path.parent.with_suffix(".py")
        return re.search(rf"^((def|class) )?{path.name}\b", place.read_text(encoding="utf-8"), re.M) is not None

    assert [name for name in dict.fromkeys(NAMED) if not exists(name)] == []
