"""docs/methods.md is the specification: what the code cites is there, and it says what the code does by default."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

from pflbench import methods

ROOT = Path(__file__).parents[1]
SPECIFICATION = ROOT / "docs" / "methods.md"
CITED = re.compile(r"methods\.md\s+(\d+(?:\.\d+)?(?:(?:, | and )\d+(?:\.\d+)?)*)")
HEADING = re.compile(r"^#{2,3} (\d+(?:\.\d+)?) ", re.MULTILINE)


def sections() -> dict[str, str]:
    """Number -> text of a section, without those below it."""
    text = SPECIFICATION.read_text()
    found = list(HEADING.finditer(text))
    ends = [following.start() for following in found[1:]] + [len(text)]
    return {heading[1]: text[heading.start() : end] for heading, end in zip(found, ends, strict=True)}


def test_every_section_that_is_cited_exists() -> None:
    files = [*(ROOT / "pflbench").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    cited = {
        (number, path.relative_to(ROOT))
        for path in files
        for citation in CITED.findall(path.read_text())
        for number in re.split(", | and ", citation)
    }
    assert len(cited) > 100
    assert [f"{path}: {number}" for number, path in cited if number not in sections()] == []


@pytest.mark.parametrize("name", methods.METHODS)
def test_hyperparameters_stand_with_their_defaults_in_the_section_that_the_method_cites(name: str) -> None:
    cls = methods.load(name)
    cited = CITED.search(inspect.getdoc(sys.modules[cls.__module__]) or "")
    assert cited is not None, f"{cls.__module__} cites no section of the specification"
    text = sections()[cited[1]]
    for hyper in methods.hyperparameters(name):
        value = str(hyper.default).lower() if isinstance(hyper.default, bool) else hyper.default
        written = f"{value:g}" if isinstance(value, float) else str(value)
        assert f"`{hyper.name}={written}`" in text, f"{name}: {hyper.name}={written} does not stand in section {cited[1]}"
