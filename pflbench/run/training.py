"""The loop over rounds: trains a specification, or resumes it, and stores its rounds in the database."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sqlalchemy
import torch

from pflbench import environment, interrupts, methods
from pflbench.engine import devices, memory
from pflbench.engine.federation import Federation
from pflbench.engine.requests import Executor
from pflbench.errors import Diverged, Occupied, Unreachable, UserError, Vanished
from pflbench.plugins import described
from pflbench.run import record
from pflbench.run.arithmetic import exact_arithmetic, memory_errors
from pflbench.run.checkpoint import Checkpoints, Snapshot, owner, tensors
from pflbench.run.clock import clock
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData, load_federation_data
from pflbench.run.metrics import measure
from pflbench.run.new_clients import tested as tested_new
from pflbench.run.places import name_of, place_of
from pflbench.run.prepared import Prepared, prepare
from pflbench.run.record import RunRecord, as_begun
from pflbench.run.round import RECEPTION, CommunicationRound, require_global_model
from pflbench.spec import RunSpec
from pflbench.store import locks, measures, runs, write
from pflbench.store.failures import patiently
from pflbench.store.runs import Run
from pflbench.store.write import RoundRecord

MEASURED = ("accuracy", "test_loss", "train_loss")  # compared between a checkpoint and the database's row of its round


@dataclass(frozen=True)
class Progress:
    """A step of `execute`. accuracy, best: in [0, 1]; seconds: of the round; news: warnings to print."""

    run_id: int
    kind: Literal["started", "resumed", "round", "finished", "exists"]
    round: int
    rounds: int
    accuracy: float | None = None
    best: float | None = None
    seconds: float = 0.0
    news: tuple[str, ...] = ()


def execute(
    spec: RunSpec, store: sqlalchemy.Engine, data_root: Path, how: Execution = Execution(), *, force: bool = False
) -> Generator[Progress, None, None]:
    """Trains a specification, resumes it, or reports that it is finished; each "round" is reported after its commit.

    KeyboardInterrupt marks the run `interrupted`, errors mark it `failed` or `diverged`. Both write a checkpoint and are raised
    again.
    """
    device = find_device(how.device)
    with exact_arithmetic(device, spec.train.dtype, how.deterministic), memory_errors(device):
        yield from execute_on(None, spec, store, data_root, how, device, force=force)


def execute_on(
    own: Executor | None,
    spec: RunSpec,
    store: sqlalchemy.Engine,
    data_root: Path,
    how: Execution,
    device: torch.device,
    *,
    force: bool,
) -> Generator[Progress, None, None]:
    """As `execute`, on the executor `own`, or a new one if None. The caller sets arithmetic and handles memory errors."""
    with locks.locked(store, spec.key) as require_owned:
        place = place_of(store.url, how.checkpoints)
        found = attempt_for(store, spec, how, force)
        if found:
            require_same_code(found, spec)
        if found and found.status == "finished":
            yield Progress(found.id, "exists", spec.train.rounds, spec.train.rounds)
            return
        if found and found.status == "diverged":
            raise Diverged(found.message or "The run diverged.", f"It is stored as run {found.id}; --force runs it anew.")
        environment.reset_peak_memory()
        data = load_federation_data(spec, data_root)
        _require_test_samples(spec, data)
        run = prepare(spec, data, device, as_begun(how, found, device))
        fed = run.federation(own)
        fed.clock = clock(run)
        try:
            loop = _Loop(run, fed)  # refuses impossible combinations before anything is stored
            row = found or _created(run, store, {"forced": _kept(how)} if force else {})
            name = name_of(row, store.url, how.checkpoints)
            checkpoints = Checkpoints(place, name, owner(row), how.checkpoint_every)
            run_record = RunRecord(store, row, run, fed, require_owned)
            if fed.device.type != "cpu":  # on a CPU the peak includes the data
                memory.release(fed.device)
                devices.reset_peak(fed.device)
            with _marked(spec, run_record, checkpoints):
                yield from loop.run(run_record, checkpoints)
        finally:
            fed.executor.close()


class _Loop:
    """The rounds of one run. Row t of the database has the cost of round t and the accuracy after it.

    A row therefore covers the update of round t, the reception of round t + 1 and E1.
    """

    def __init__(self, run: Prepared, fed: Federation) -> None:
        """Raises UserError for a method that does not go with the model, the protocol or the central test set."""
        self.method, self.train = run.method, run.spec.train
        self.fed, self.how, self.central = fed, run.how, run.data.central
        self.new = run.newcomers(fed)
        first = fed.at(0)
        self.state, self.notes = self.method.init(first), first.ledger.notes
        if wrong := [name for name, value in tensors(self.state).items() if not isinstance(value, torch.Tensor)]:
            raise UserError(
                f"The state of {run.spec.method.name} has a field '{wrong[0]}' that is no tensor: no checkpoint could keep it.",
                "Make it a tensor, such as torch.tensor(0).",
            )
        if self.central is not None:
            require_global_model(run.spec.method.name, self.method, self.state)
        self.best: float | None = None
        self.round: CommunicationRound  # after its reception, before its update

    def run(self, run_record: RunRecord, checkpoints: Checkpoints) -> Iterator[Progress]:
        self.run_record, self.checkpoints = run_record, checkpoints
        self.run_record.note(self.notes)
        last = self._resume()
        self.run_record.rewind(last)
        yield self._progress("started" if last < 0 else "resumed", max(last, 0))
        for t in range(last + 1, self.train.rounds + 1):
            told = self._row(t)
            yield self._progress("round", t, told["measured"]["accuracy"], told["seconds"])
        self.run_record.end("finished")
        self.checkpoints.remove()
        yield self._progress("finished", self.train.rounds)

    def _resume(self) -> int:
        """The checkpoint's round; -1 if the run starts over. If stored rounds are lost by that, a note says why."""
        found, why = self.checkpoints.load(self.state, self.fed.device), self.checkpoints.wrong
        # After a power failure the checkpoint may be newer than the database's last commit.
        if found is not None and not self.run_record.has(found.t, found.carried.get("measured", {})):
            why = f"is of round {found.t}, which the database does not have"
        if found is None or why:
            if self.run_record.rounds_stored > 1:
                none = f"there is no checkpoint of it in {self.checkpoints.place}"
                self.run_record.note({"checkpoint": f"{f'its checkpoint {why}' if why else none}: the run starts over."})
            return -1
        self.checkpoints.last = found
        # A copy: training changes buffers in place, and this snapshot may be saved again.
        self.fed.buffers.update({which: rows.clone() for which, rows in found.buffers.items()})
        self.state, self.best = found.state, found.carried["best"]
        self.round = CommunicationRound(self.method, self.fed, found.t + 1)
        self.round.take_over(*(found.carried[name] for name in ("seconds_receive", "flops_receive", "traffic")))
        return found.t

    def _row(self, t: int) -> dict[str, Any]:
        """Round t's update, the reception of round t + 1, E1, and the commit. Row 0 is the initial model, without an update.

        Returns the plain numbers of its checkpoint.
        """
        begun = self.fed.executor.clock()
        cost, seen = self._update(t) if t > 0 else ({}, {})
        following = CommunicationRound(self.method, self.fed, t + 1)
        evaluated = t % self.train.eval_every == 0 or t == self.train.rounds
        following.reception.observing = self._observed(t)
        following.reception.test_follows = evaluated
        # Only where others than the cohort receive for a test, or once more: states are large.
        before = self.state if self.train.tests_outsiders or self.train.eval_repeats > 1 else None
        self.state = following.receive(self.state)
        self.run_record.note(following.reception.ledger.notes)
        results = record.tested(following, *following.evaluate(before, self.state, self.central)) if evaluated else {}
        # Arrays of the reception of round t + 1 belong to this E1.
        artifacts = {**seen, **following.reception.ledger.artifacts}
        if evaluated and self._measured(t):
            artifacts[measures.NAME] = measure(self.method, following.reception, before, self.state, following.S)
        series = {**cost.pop("series", {}), **results.pop("series", {})}
        new = self._new_clients(t, following.reception)
        self.run_record.keep(RoundRecord(round=t, **cost, **results, series=series, artifacts=artifacts, new_clients=new))
        if "accuracy" in results:
            self.best = max(results["accuracy"], self.best or 0.0)
        self.round = following
        carried = {
            "seconds_receive": following.seconds[RECEPTION],
            "flops_receive": following.flops[RECEPTION],
            "traffic": following.traffic.tolist(),
            "best": self.best,
            "measured": {name: {**cost, **results}.get(name) for name in MEASURED},
            "seconds": self.fed.executor.clock() - begun,
        }
        snapshot = Snapshot(t, self.state, {which: rows.clone() for which, rows in self.fed.buffers.items()}, carried)
        self.checkpoints.reach(snapshot, over=t == self.train.rounds)
        return carried

    def _update(self, t: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Trains round t. Returns its columns of cost and its artifacts."""
        fed, follow = self.round.training, self.how.follow
        fed.observing = self._observed(t)
        fed.keep_trained = self.how.test_after_training
        received = self.state
        fed.followed = follow.client if follow and follow.first <= t <= follow.last else None
        self.state = self.round.update(self.state)
        self.run_record.note(fed.ledger.notes)
        cost = record.cost(self.round)
        if self.how.test_after_training:
            scores = self.round.evaluate_trained(received, self.state)
            cost |= {"series": {measures.AFTER_TRAINING: (scores.accuracy, scores.mean_loss)} if scores else {}}
        return cost, fed.ledger.artifacts

    def _new_clients(self, t: int, fed: Federation) -> Sequence[dict[str, Any]]:
        """The rows of the clients that never join, in rounds in which they are tested."""
        every = self.train.new_every
        if self.new is None or not (t == self.train.rounds or (every and t % every == 0)):
            return ()
        results = tested_new(self.method, fed, self.state, self.new)
        if results is None:
            self.run_record.note(
                {"new clients": "what its authors give a new client is not known here: new clients are not tested."}
            )
            return ()
        return record.adapted(results, self.fed.size, t)

    def _observed(self, t: int) -> bool:
        """Whether large arrays are kept with row t."""
        return self.how.save_artifacts_every > 0 and t % self.how.save_artifacts_every == 0

    def _measured(self, t: int) -> bool:
        """Whether the measures beside accuracy are computed in row t."""
        every = self.how.metrics_every
        return every > 0 and (t % every == 0 or t == self.train.rounds)

    def _progress(self, kind: Any, t: int, accuracy: float | None = None, seconds: float = 0.0) -> Progress:
        return Progress(self.run_record.run_id, kind, t, self.train.rounds, accuracy, self.best, seconds, self.run_record.news())


def attempt_for(store: sqlalchemy.Engine, spec: RunSpec, how: Execution, force: bool) -> Run | None:
    """The attempt that the command resumes, or that has ended; None if the command starts a new attempt.

    A finished attempt stays the result if a later one was interrupted. force: resumes only the newest attempt, if that is of an
    interrupted --force command with the same arrays to keep and the same code.
    """
    found = patiently(lambda: runs.attempts(store, [spec.key])).get(spec.key, [])
    if not force or not found:
        return runs.that_counts(found)
    newest = found[-1]
    own = not newest.ended and newest.environment.get("forced") == _kept(how) and same_code(newest, spec)
    return newest if own else None


def _kept(how: Execution) -> dict[str, Any]:
    """The options for arrays to keep, as JSON types."""
    return {
        "save_artifacts_every": how.save_artifacts_every,
        "metrics_every": how.metrics_every,
        "test_after_training": how.test_after_training,
        "follow": None if how.follow is None else list(vars(how.follow).values()),
    }


def _created(run: Prepared, store: sqlalchemy.Engine, environment: dict[str, Any]) -> Run:
    """Creates the row of a new run. environment: what RunRecord cannot add to it."""
    patiently(lambda: write.create_run(store, run.spec, environment, whole=run.how.record_host))
    row = patiently(lambda: runs.newest(store, run.spec.key))
    assert row is not None
    return row


def _require_test_samples(spec: RunSpec, data: FederationData) -> None:
    """Raises UserError if no client has test samples: the run would have no result."""
    if data.central is None and not any(len(test) for test in data.partition.test):
        raise UserError(
            f"No client of {spec.data.label}, {spec.partition.label}, has test samples: the run would have no result.",
            "Generate the partition anew with test samples.",
        )


def same_code(found: Run, spec: RunSpec) -> bool:
    """Whether the method's code is that of the run; always for built-in methods, which the commit identifies."""
    before, present = found.environment.get("plugin", {}).get("sha256"), methods.record(spec.method.name).get("sha256")
    return before in (None, present)


def require_same_code(found: Run, spec: RunSpec) -> None:
    """Raises UserError where the code of a plug-in has changed: it must neither resume the run nor reuse its result."""
    if not same_code(found, spec):
        raise UserError(
            f"The code of method '{spec.method.name}' has changed since run {found.id}, its version has not.",
            "Raise `version` in the class if results change; `pflbench run --force` runs it anew.",
        )


@contextmanager
def _marked(spec: RunSpec, run_record: RunRecord, checkpoints: Checkpoints) -> Iterator[None]:
    """Stores why a run ends early, and its last whole round as a checkpoint."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        _stop(run_record, checkpoints, "interrupted", None)
        raise
    except Diverged as error:
        message = f"{spec.method.name}, seed {spec.seed}: {error.message}."
        run_record.end("diverged", message)
        checkpoints.remove()
        raise Diverged(message, error.hint) from None
    except Occupied:  # another process trains the run now
        raise
    except (Unreachable, Vanished):  # the database cannot store the status
        with interrupts.held(), suppress(OSError, RuntimeError, UserError):
            checkpoints.keep()
        raise
    except Exception as error:
        if interrupts.arrived():  # a library turned KeyboardInterrupt into its own error
            _stop(run_record, checkpoints, "interrupted", None)
            raise KeyboardInterrupt from error
        told = "out of GPU memory" if memory.ran_out(error) else described(error)
        _stop(run_record, checkpoints, "failed", told)
        raise


def _stop(run_record: RunRecord, checkpoints: Checkpoints, status: str, message: str | None) -> None:
    with interrupts.held():
        # Report the first error: if the disk is full, these steps may fail, too.
        with suppress(OSError, RuntimeError, UserError):
            checkpoints.keep()
        with suppress(UserError, sqlalchemy.exc.SQLAlchemyError):
            run_record.end(status, message)
