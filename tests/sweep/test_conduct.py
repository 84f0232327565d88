"""What a sweep begins, skips, tries again and stops for, with workers of threads in place of processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import numbers, run, spec

from pflbench.cli.progress import sweep_view
from pflbench.errors import UserError
from pflbench.methods.local import Local
from pflbench.run.execution import Execution
from pflbench.store import locks, runs, sweeps, write
from pflbench.store.database import connect, to_url
from pflbench.sweep.conduct import Course, conduct, course, unclaimed_jobs
from pflbench.sweep.jobs import Here, RunOutcome, jobs_of, make

SPECS = [spec(name, seed=seed, rounds=2, clients=3) for seed in range(2) for name in ("fedavg", "local")]


class Threads:
    """Makes jobs in this process, one at a time: PyTorch has one stream of random numbers for all its threads.

    Those of `failing` fail. news: what each run tells. begun: their keys, in order.
    """

    def __init__(self, failing=(), news=()):
        self.places, self.failing, self.news = 1, {one.key for one in failing}, news
        self.begun, self.stopped = [], 0
        self._pool = ThreadPoolExecutor(1)

    def submit(self, job):
        return self._pool.submit(self._made, job)

    def _made(self, job):
        self.begun += [one.key for one in job.specs]
        if self.failing & {one.key for one in job.specs}:
            return [RunOutcome(one.key, "failed", "broken") for one in job.specs]
        return [replace(outcome, news=outcome.news + self.news) for outcome in make(job)]

    def stop(self):
        self.stopped += 1

    def close(self):
        self._pool.shutdown()


@pytest.fixture
def store(tmp_path):
    engine = connect(to_url(str(tmp_path / "results.db")))
    yield engine
    engine.dispose()


def jobs(store, specs):
    return jobs_of(specs, store, Path("data"), Execution(engine="loop", workers=1))


def conducted(store, workers, specs=SPECS, **how):
    kept = {name: how.pop(name) for name in ("retry_failed", "limit") if name in how}
    found = course(store, specs, **kept)
    for _ in conduct(found, workers, jobs(store, found.ahead), **how):
        pass
    workers.close()
    return found


def keys(specs):
    return [one.key for one in specs]


def test_runs_of_a_sweep_are_those_of_run_and_are_made_once(store, tmp_path):
    workers = Threads()
    found = conducted(store, workers)
    assert sorted(workers.begun) == sorted(keys(SPECS))
    assert {outcome.state for outcome in found.ended.values()} == {"finished"}
    assert not found.ahead
    apart = connect(to_url(str(tmp_path / "apart.db")))
    for one in SPECS:
        run(one, apart)
        assert numbers(apart, runs.newest(apart, one.key).id) == numbers(store, runs.newest(store, one.key).id)
    apart.dispose()

    again = Threads()
    found = conducted(store, again)
    assert again.begun == []
    assert set(found.skipped.values()) == {"finished"}


def test_a_failure_ends_the_sweep_unless_it_keeps_going(store):
    workers = Threads(failing=SPECS[1:2])
    found = conducted(store, workers)
    assert workers.begun == keys(SPECS[:2])
    assert "a run failed" in found.stopped
    assert keys(found.ahead) == keys(SPECS[2:])

    workers = Threads(failing=SPECS[1:2])
    found = conducted(store, workers, keep_going=True)
    assert workers.begun == keys(SPECS[1:])
    assert (found.count("finished"), found.count("failed")) == (2, 1)


def test_what_failed_before_is_tried_again_when_asked(store, monkeypatch):
    from pflbench.store import write

    (failed,) = SPECS[:1]
    number = write.create_run(store, failed, {})
    write.update_run(store, number, status="failed", message="out of luck")
    workers = Threads()
    found = conducted(store, workers)
    assert failed.key not in workers.begun
    assert found.skipped == {failed.key: "failed"}

    workers = Threads()
    conducted(store, workers, retry_failed=True)
    assert workers.begun == [failed.key]
    assert runs.newest(store, failed.key).status == "finished"


def test_a_limit(store):
    workers = Threads()
    conducted(store, workers, limit=3)
    assert workers.begun == keys(SPECS[:3])
    assert sweeps.standing(store, SPECS).counts == {"finished": 3, "missing": 1}


def test_a_cancelled_sweep_stops_its_workers_and_begins_nothing(store):
    sweep = sweeps.save(store, "small", SPECS, {})
    workers, found = Threads(), course(store, SPECS)
    for state in conduct(found, workers, jobs(store, found.ahead), cancelled=lambda: sweeps.cancelled(store, sweep.id)):
        if not state.stopped:
            sweeps.cancel(store, "small")
    workers.close()
    assert workers.stopped == 1
    assert found.stopped == "it was cancelled"
    assert len(workers.begun) < len(SPECS)
    assert sweeps.reopen(store, "small").cancelled_at is None


def test_ctrl_c_stops_the_workers_and_waits_for_them(store):
    workers, found = Threads(), course(store, SPECS)
    steps = conduct(found, workers, jobs(store, found.ahead))
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt)
    workers.close()
    assert workers.stopped == 1
    assert not found.under_way
    assert len(found.ended) == len(workers.begun)


def test_a_sweep_of_the_same_name_takes_the_place_of_the_first(store):
    sweeps.save(store, "small", SPECS, {"command": "one"})
    sweeps.cancel(store, "small")
    second = sweeps.save(store, "small", SPECS[:1], {"command": "two"})
    assert [one.name for one in sweeps.listed(store)] == ["small"]
    assert (second.specs, second.environment, second.cancelled_at) == (tuple(SPECS[:1]), {"command": "two"}, None)
    sweeps.remove(store, "small")
    assert sweeps.cancelled(store, second.id)


def test_a_run_that_another_process_is_at_is_left_to_it(store):
    from pflbench.store import locks

    with locks.locked(store, SPECS[0].key):
        (outcome,) = make(next(jobs(store, SPECS[:1])))
    assert outcome.state == "elsewhere"


@pytest.mark.parametrize("quiet", [False, True])
def test_what_several_runs_tell_is_told_once(store, capsys, quiet):
    workers, found = Threads(news=("memory is short", "a step waits")), course(store, SPECS[:3])
    with sweep_view(found, store, quiet) as look:
        for state in conduct(found, workers, jobs(store, found.ahead)):
            look(state)
    workers.close()
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if "memory" in line or "step" in line] == [
        "fedavg digits Dir(0.5) seed 0: memory is short",
        "fedavg digits Dir(0.5) seed 0: a step waits",
    ]
    assert len(told) == (2 if quiet else 5)


def seen(job, steps):
    yield from steps


def test_in_this_process_an_error_passes_unless_it_keeps_going(store, monkeypatch):
    def broken(self, fed, s, S):
        raise UserError("Broken.", "Mend it.")

    monkeypatch.setattr(Local, "update", broken)
    specs = [spec("local", rounds=2, clients=3), *SPECS[2:3]]
    found = Course(list(specs))
    with pytest.raises(UserError, match="Broken"):
        list(conduct(found, Here(store, seen), jobs(store, specs)))
    assert keys(found.ahead) == keys(specs[1:])

    found = Course(list(specs))
    list(conduct(found, Here(store, seen, keep_going=True), jobs(store, specs), keep_going=True))
    assert [(one.state, one.message) for one in found.ended.values()] == [("failed", "Broken.\nMend it."), ("finished", "")]


def test_in_this_process_ctrl_c_passes_and_leaves_a_checkpoint(store):
    def interrupted(job, steps):
        for number, step in steps:
            if step.kind == "round":
                steps.throw(KeyboardInterrupt)
            yield number, step

    found = Course(list(SPECS))
    with pytest.raises(KeyboardInterrupt):
        list(conduct(found, Here(store, interrupted), jobs(store, SPECS)))
    assert keys(found.under_way) == keys(SPECS[:1])
    assert runs.newest(store, SPECS[0].key).status == "interrupted"
    list(conduct(Course(list(SPECS[:1])), Here(store, seen), jobs(store, SPECS[:1])))
    assert runs.newest(store, SPECS[0].key).status == "finished"


def test_what_a_worker_takes_is_what_nobody_is_at(store):
    """One that was killed comes last; what another has finished meanwhile, or is at, does not come at all."""
    killed, interrupted, _, finished, taken, failed = some = [spec(seed=seed, rounds=2, clients=3) for seed in range(6)]
    for one, status in ((killed, "running"), (interrupted, "interrupted"), (failed, "failed")):
        write.update_run(store, write.create_run(store, one, {}), status=status)
    found = unclaimed_jobs(store, some, lambda left: jobs(store, left))
    given = [next(found).specs[0]]
    write.update_run(store, write.create_run(store, finished, {}), status="finished")
    write.create_run(store, taken, {})
    with locks.locked(store, taken.key):
        given += [job.specs[0] for job in found]
    assert [one.seed for one in given] == [1, 2, 0]
