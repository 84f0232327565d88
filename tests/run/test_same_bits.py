"""The same command gives the same bits, whatever else the machine does and however many clients go side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.command import ROOT, TESTS, environment

# Steps, inner loops, features of the head, matrices of all clients, initial stages.
SOME = ["fedavg", "pfedme", "fedrep", "apple", "fedala", "ditto+ala"]
PROGRAM = TESTS / "support" / "same_bits.py"
# With these instructions products of small matrices, too, depend on the number of threads.
OLD = {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def digests(methods: list[str], repetitions: int, busy: int, threads: int) -> dict[str, str]:
    path = os.pathsep.join([str(TESTS), str(ROOT)])
    command = [sys.executable, str(PROGRAM), ",".join(methods), str(repetitions), str(busy)]
    made = environment(PYTHONPATH=path, OMP_NUM_THREADS=str(threads), **OLD)
    done = subprocess.run(command, capture_output=True, text=True, env=made, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.slow
def test_rows_are_the_same_bits_with_any_number_of_workers_and_threads():
    """FedALA learns its weights on a head of its own."""
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda threads: digests(["fedala"], 3, 0, threads), (1, 2))
    assert one.keys() == {"client", "fedala"}
    assert one == two


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be moved to cores here")
def test_rows_are_the_same_bits_on_a_busy_machine():
    found = digests(SOME, 3, 2, os.cpu_count() or 2)
    assert found == digests(SOME, 1, 0, 1)
