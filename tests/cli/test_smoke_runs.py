"""Runs of `reproduce --scale smoke`: out of tables and figures, unless they are asked for."""

from __future__ import annotations

import json

from support.command import Shell, rows


def test_smoke_runs_stay_out_unless_asked_for(shell: Shell) -> None:
    smoke = ("reproduce", "table:accuracy", "--scale", "smoke", "-d", "mnist", "-p", "Dir(0.1)", "-m", "fedavg", "-q")
    assert shell(*smoke).code == 0
    told = shell.refused("table", "accuracy")
    assert "This database has only smoke runs: 1." in told
    assert "--smoke shows them" in told
    assert shell("table", "accuracy", "--smoke").code == 0
    shell("run", "-m", "fedavg", "-d", "digits", "--rounds", "1", "-q")
    assert rows("SELECT json_extract(environment, '$.scale') FROM run ORDER BY id") == [("smoke",), (None,)]
    for command in (("table", "accuracy"), ("table", "overhead")):
        document = json.loads(shell(*command, "--json").out)
        assert [cell["runs"] for cell in document["cells"]] == [[2]]
        assert any("Not counted: 1 run of `reproduce --scale smoke`" in note for note in document["notes"])
    both = json.loads(shell("table", "accuracy", "--smoke", "--json").out)
    assert sorted(cell["runs"] for cell in both["cells"]) == [[1], [2]]
    assert not any("smoke" in note for note in both["notes"])
    named = json.loads(shell("table", "accuracy", "--run", "1", "--json").out)
    assert [cell["runs"] for cell in named["cells"]] == [[1]], "who names a run asks for it"
    drawn = shell("plot", "curves", "-o", "curves.svg")
    assert (drawn.code, "--smoke shows them" in drawn.err) == (0, True)
    assert len(json.loads(shell("runs", "list", "--json").out)) == 2, "a list of runs has all of them"
    assert shell(*smoke, "-f", "json").out.count('"mean"') == 1, "its own table has its own runs"
