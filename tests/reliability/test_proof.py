"""The table of the proof has what was counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faults import tally


def test_the_table_has_what_was_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tally.BEGIN}\nold\n{tally.END}\nafter\n")
    counted = tally.Tally("kill -9", "test_kill.py::test_sql")
    counted.count("one", 1, 12)
    counted.count("two")
    none = tally.Tally("disk full", "test_shortage.py::test_disk", why_none="no file system may be mounted here")
    tally.write(page, [counted.plain(), none.plain()], "how")
    lines = page.read_text().splitlines()
    assert "| kill -9 | 2 | 1 | 12 | `test_kill.py::test_sql` |" in lines
    assert "| disk full | 0: no file system may be mounted here | | | `test_shortage.py::test_disk` |" in lines
    assert "| **all** | **2** | **1** | **12** | |" in lines
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert counted.told() == "one: 1 runs and 12 rows were lost"


@pytest.mark.parametrize(
    ("asked", "number", "chosen"), [(None, 3, [0, 4, 9]), (5, 5, [0, 2, 4, 7, 9]), (0, 200, [0, 1, 3, 4, 5, 6, 8, 9])]
)
def test_how_many_tries(asked: int | None, number: int, chosen: list[int]) -> None:
    counted = tally.Tally("", "", asked)
    assert counted.number(3, 200) == number
    assert list(counted.some(range(10), 3, 8)) == chosen
