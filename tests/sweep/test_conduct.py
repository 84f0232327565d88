"""What a sweep begins, skips, tries again and stops for, with workers of threads in place of processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.runs import numbers, run, spec

from pflbench.run.execution import Execution
from pflbench.store import runs, sweeps
from pflbench.store.database import connect, to_url
from pflbench.sweep.conduct import conduct, course
from pflbench.sweep.jobs import RunOutcome, jobs_of, make

SPECS = [spec(name, seed=seed, rounds=2, clients=3) for seed in range(2) for name in ("fedavg", "local")]


class Threads:
    """Makes jobs in this process, one at a time: PyTorch has one stream of random numbers for all its threads.

    Those of `failing` fail. begun: their keys, in order.
    """

    name = "threads"

    def __init__(self, failing=()):
        self.places, self.failing = 1, {one.key for one in failing}
        self.begun, self.stopped = [], 0
        self._pool = ThreadPoolExecutor(1)

    def submit(self, job):
        return self._pool.submit(self._made, job)

    def _made(self, job):
        self.begun += [one.key for one in job.specs]
        if self.failing & {one.key for one in job.specs}:
            return [RunOutcome(one.key, "failed", "broken") for one in job.specs]
        return make(job)

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
