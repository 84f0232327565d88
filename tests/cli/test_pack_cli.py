"""`pflbench run --pack`: the same lines as without, in the order of the packs; Ctrl-C, divergence, and what is refused."""

from __future__ import annotations

import json

import pytest
from support.command import Shell, rows

SHORT = ("-d", "digits", "--rounds", "2", "--clients", "5", "--engine", "batched")


@pytest.mark.slow
def test_the_same_lines(shell: Shell) -> None:
    command = ("run", "-m", "local", "-m", "fedavg", *SHORT, "--seeds", "0-1")
    packed = shell(*command, "--pack", "2")
    assert packed.code == 0
    separate = shell(*command, "--force", "--quiet")

    def results(out: str) -> list[list[str]]:
        return sorted(line.split("  ")[1:] for line in out.splitlines())

    assert results(packed.out) == results(separate.out)
    assert [line.split("  ")[4] for line in packed.out.splitlines()] == ["seed 0", "seed 1", "seed 0", "seed 1"]
    told = [line for line in packed.err.splitlines() if line.startswith("fedavg")]
    assert [line.split(": ")[1].split("  ")[0] for line in told] == [
        "run 3 started, 2 rounds", "run 4 started, 2 rounds", "round 0/2", "round 0/2", "round 2/2", "round 2/2",
    ]  # fmt: skip
    found = rows("SELECT json_extract(environment, '$.pack') FROM run ORDER BY id")
    assert [json.loads(str(pack)) for (pack,) in found[:4]] == [{"runs": 2, "calls": 5, "apart": 0}] * 4
    assert found[4:] == [(None,)] * 4, "on a CPU nothing is packed unasked"


def test_a_diverged_run_is_told_and_the_exit_code_says_so(shell: Shell) -> None:
    command = ("run", "-m", "fedprox", *SHORT, "--seeds", "0-1", "--set", "fedprox.mu=1e38", "--pack", "2", "--quiet")
    done = shell(*command)
    assert (done.code, done.err.count("Error: fedprox, seed")) == (2, 2)
    assert rows("SELECT status FROM run") == [("diverged",)] * 2
    assert shell(*command).err.count("--force runs it anew") == 2


@pytest.mark.slow
def test_reproduce_packs_too(shell: Shell) -> None:
    command = ("reproduce", "ablation", "--scale", "smoke", "--seeds", "0-1", "--engine", "batched", "--pack", "2", "--json")
    done = shell(*command)
    assert done.code == 0
    found = rows("SELECT seed, status, json_extract(environment, '$.pack.runs') FROM run ORDER BY id")
    assert found == [(0, "finished", 2), (1, "finished", 2)] * 2
    assert [cell["n"] for cell in json.loads(done.out)["cells"]] == [2, 2]
