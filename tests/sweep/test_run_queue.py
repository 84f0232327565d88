"""What workers take from the database, and what a command does about those that are killed, cancelled or fail."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import numbers, run, spec

from pflbench.cli.progress import sweep_view
from pflbench.methods.local import Local
from pflbench.run.execution import Execution
from pflbench.spec import DataSpec
from pflbench.store import locks, runs, sweeps, write
from pflbench.store.database import connect, to_url
from pflbench.sweep import run_jobs, run_queue
from pflbench.sweep.run_jobs import KILLED
from pflbench.sweep.run_queue import RunQueue, unclaimed, work

SPECS = [spec(name, seed=seed, rounds=2, clients=3, batch_size=100) for seed in range(2) for name in ("fedavg", "local")]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(run_jobs.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(run_queue, "LOOK", 0)


class Here:
    """A worker that does its work at once. kills: how many are killed before that. made: keys, in order."""

    places = 1

    def __init__(self, store, kills=0):
        self.store, self.kills, self.lost, self.made, self.stopped = store, kills, 0, [], False

    def start(self, queue):
        if self.lost < self.kills:
            self.lost += 1
        else:
            self.made += work(queue, self.store)

    def alive(self):
        return 0

    def stop(self):
        self.stopped = True

    def close(self):
        pass


def queued(store, specs=SPECS, **more):
    return RunQueue(tuple(specs), store.url, Path("data"), Execution(engine="loop", workers=1), **more)


def made(store, workers, queue, look=lambda state: None):
    return run_jobs.run_jobs(queue, store, workers, look)


def keys(specs):
    return [one.key for one in specs]


def states(store, specs=SPECS):
    return list(sweeps.sweep_state(store, specs).states.values())


def broken(self, fed, s, S):
    raise RuntimeError("broken")


def test_runs_of_a_sweep_are_those_of_run_and_are_made_once(store, tmp_path):
    workers = Here(store)
    assert made(store, workers, queued(store)) == ""
    assert workers.made == keys(SPECS)
    apart = connect(to_url(str(tmp_path / "apart.db")))
    for one in SPECS:
        run(one, apart)
        assert numbers(apart, runs.newest(apart, one.key).id) == numbers(store, runs.newest(store, one.key).id)
    apart.dispose()
    assert work(queued(store), store) == []
    anew = queued(store, repeated=sweeps.last_ended(store, keys(SPECS)))
    assert work(anew, store) == keys(SPECS)
    assert work(anew, store) == [], "another worker of the same command"
    assert [len(found) for found in runs.attempts(store, keys(SPECS)).values()] == [2] * 4


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_failure_ends_the_sweep_unless_it_keeps_going(store, monkeypatch, keep_going):
    monkeypatch.setattr(Local, "update", broken)
    why = made(store, Here(store), queued(store, keep_going=keep_going))
    assert ("a run failed" in why) is not keep_going
    assert states(store) == ["finished", "failed", *(("finished", "failed") if keep_going else ("missing", "missing"))]


def test_a_run_that_cannot_begin_has_failed_and_says_why(store):
    """Else each of the workers would try it."""
    without = SPECS[0].model_copy(update={"data": DataSpec(name="mnist")})
    told = []
    work(queued(store, [without, SPECS[1]], keep_going=True), store, failed=lambda error: told.append(str(error)))
    assert states(store, [without, SPECS[1]]) == ["failed", "finished"]
    assert runs.newest(store, without.key).message == told[0]
    assert told[0].startswith("The data of 'mnist' are missing")
    sweeps.requeue(store, [without])
    assert states(store, [without]) == ["interrupted"], "it is tried again"


def test_a_cancelled_sweep_interrupts_its_runs_and_begins_nothing(store):
    sweep = sweeps.save(store, "small", SPECS, {})

    def cancelling(specs, steps):
        for number, step in steps:
            if step.kind == "round":
                sweeps.set_cancelled(store, "small", True)
            yield number, step

    queue = queued(store, sweep=sweep.id)
    work(queue, store, follow=cancelling)
    assert states(store) == ["interrupted", "missing", "missing", "missing"]
    assert made(store, Here(store), queue) == "it was cancelled"
    assert sweeps.set_cancelled(store, "small", False).cancelled_at is None
    assert made(store, Here(store), queue) == ""
    assert runs.newest(store, SPECS[0].key).attempt == 1, "it went on"


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
def test_ctrl_c_and_a_closed_stdout_stop_the_workers(store, error):
    """At its end Python would wait for workers that train on, for nobody."""

    def look(state):
        raise error

    workers = Here(store)
    with pytest.raises(error):
        made(store, workers, queued(store), look)
    assert workers.stopped


@pytest.mark.parametrize("kills", [2, 100])
def test_workers_that_are_killed_are_replaced_as_long_as_that_helps(store, kills):
    workers = Here(store, kills)
    assert made(store, workers, queued(store)) == (KILLED if kills == 100 else "")
    assert workers.lost == min(kills, run_jobs.TRIES)


def test_a_run_that_another_process_is_at_is_left_to_it_until_that_is_killed(store):
    workers = Here(store)
    with ExitStack() as other:
        other.enter_context(locks.locked(store, SPECS[0].key))
        seen = []

        def look(state):
            seen.append(state.states[SPECS[0].key])
            assert len(seen) < 10
            if state.counts["finished"] == 3:
                other.close()

        assert made(store, workers, queued(store), look) == ""
    assert seen == ["running", "running", "missing", "finished"]
    assert workers.made == keys([*SPECS[1:], SPECS[0]])


def test_a_sweep_of_the_same_name_takes_the_place_of_the_first(store):
    sweeps.save(store, "small", SPECS, {"command": "one"})
    sweeps.set_cancelled(store, "small", True)
    second = sweeps.save(store, "small", SPECS[:1], {"command": "two"})
    assert [one.name for one in sweeps.listed(store)] == ["small"]
    assert (second.specs, second.environment, second.cancelled_at) == (tuple(SPECS[:1]), {"command": "two"}, None)


@pytest.mark.parametrize("quiet", [False, True])
def test_what_several_runs_tell_is_told_once(store, capsys, quiet):
    shortage = {"out_of_memory": [{"work": "training", "clients": 8, "then": 4}]}
    for one in SPECS[:2]:
        number = write.create_run(store, one, {"notes": {"x": "a step waits"}, "chunk": shortage})
        write.update_run(store, number, status="finished")
    queue = queued(store)
    with sweep_view(queue, quiet) as look:
        look(queue.state(store))
        look(queue.state(store))
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in told if "seed 0: " in line and "/4" not in line] == [
        "a step waits",
        "Out of memory in training with 8 clients at a time: 4 at a time from here on, same results within rounding.",
    ]
    assert [line for line in told if "/4" in line] == (
        [] if quiet else [f"{i}/4  {name} digits Dir(0.5) seed 0: finished" for i, name in ((1, "fedavg"), (2, "local"))]
    )


def test_what_a_worker_takes_is_what_nobody_is_at(store):
    """One that was killed comes last; what another has finished meanwhile, or is at, does not come at all."""
    killed, interrupted, _, finished, taken, failed = some = [spec(seed=seed, rounds=2, clients=3) for seed in range(6)]
    for one, status in ((killed, "running"), (interrupted, "interrupted"), (failed, "failed")):
        write.update_run(store, write.create_run(store, one, {}), status=status)
    found = unclaimed(queued(store, some, keep_going=True), store)
    given = next(found)
    write.update_run(store, write.create_run(store, finished, {}), status="finished")
    with locks.locked(store, taken.key):
        given += [one for specs in found for one in specs]
    assert [one.seed for one in given] == [1, 2, 0]


def test_workers_that_begin_together_take_different_packs(store):
    """Seeds that train together are taken together."""
    queue = replace(queued(store), how=Execution(engine="batched", device="cpu", pack=2))
    first = [next(unclaimed(queue, store, place)) for place in range(3)]
    assert [keys(specs) for specs in first] == [keys(SPECS[::2]), keys(SPECS[1::2]), keys(SPECS[::2])]
