"""A run before its first round: specification, method, data and device, and the executor and federation made of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pflbench import methods
from pflbench.engine import memory, rng
from pflbench.engine.batched import convolutions
from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.batched.program import capture
from pflbench.engine.batches import Plan
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.loop_executor import LoopExecutor
from pflbench.engine.requests import Evaluate, Executor, Sgd
from pflbench.engine.samples import Samples
from pflbench.errors import UserError
from pflbench.methods.base import Method
from pflbench.plugins import in_a_line
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData
from pflbench.run.flops import COUNTED, Costs, CountingExecutor, Flops
from pflbench.run.memory_estimate import estimate
from pflbench.spec import RunSpec

STEPS = 4  # of training, to time a way of convolution


@dataclass(frozen=True)
class Prepared:
    spec: RunSpec
    method: Method
    data: FederationData
    device: torch.device
    how: Execution

    def initial_model(self) -> Flat:
        """The initial model of the run's seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.derived_seed(self.spec.seed, "model"))
            return Flat(self.data.model(self.spec))

    def federation(self, executor: Executor | None = None) -> Federation:
        """The federation on an executor, by default one of its own. Closes it and raises UserError if no client can train."""
        flat, train, partition = self.initial_model(), self.spec.train, self.data.partition
        executor = CountingExecutor(executor or self.executor(flat), Flops(Costs(flat, self.two_samples())))
        fed = Federation(flat, executor, train, partition.train, partition.test, self.spec.seed, self.data.arrays.y)
        fed.validation_indices = self.data.validation
        if not fed.batches(fed.all_trainable(), 1).steps().any():
            executor.close()
            raise UserError(
                f"No client has a single batch to train on (batch size {train.batch_size}, drop-last {train.drop_last}).",
                "Choose another --batch-size or --drop-last, or fewer clients; BatchNorm needs batches of at least 2.",
            )
        return fed

    def two_samples(self) -> Tensor:
        """As the model takes them."""
        arrays = self.data.arrays
        samples = Samples(arrays.x[:COUNTED], arrays.y[:COUNTED], getattr(torch, self.spec.train.floats), torch.device("cpu"))
        return samples.batch(torch.zeros(COUNTED, dtype=torch.int64))[0]

    def newcomers(self, fed: Federation) -> Federation | None:
        """The clients that never join (methods.md 2.13), as a federation with random streams of its own; None without any."""
        new, seed = self.data.new, rng.derived_seed(self.spec.seed, "new clients")
        if new is None:
            return None
        return Federation(fed.flat, fed.executor, self.spec.train, new.train, new.test, seed, self.data.arrays.y)

    def executor(self, flat: Flat, runs: int = 1) -> Executor:
        """The executor of the run, or of several runs that differ only in the seed, with the samples on the device."""
        spec, how, arrays = self.spec, self.how, self.data.arrays
        chunks = memory.Chunks(how.chunk, self._clients_at_a_time(runs), deterministic=how.deterministic)
        samples = Samples(arrays.x, arrays.y, getattr(torch, spec.train.floats), self.device)
        if how.engine_on(str(self.device)) == "loop":
            return LoopExecutor(flat, samples, how.workers)
        if spec.own_model is not None:
            self._require_together(flat, samples)
        together = int(spec.train.join_ratio * len(self.data.partition.train)) * runs
        chosen = self.convolution(flat, samples, min(together, chunks.most or chunks.estimate or together))
        return BatchedExecutor(flat, samples, chunks, capture=capture(how.capture, self.device), convolution=chosen)

    def convolution(self, flat: Flat, samples: Samples, clients: int) -> str | None:
        """One of convolutions.CONVOLUTIONS; None on a CPU and for models without convolutions. clients: at a time."""
        if samples.device.type == "cpu" or not convolutions.convolutions(flat.module):
            return None
        if self.how.convolution != "auto":
            return self.how.convolution
        if self.how.deterministic:
            return convolutions.CONVOLUTIONS[0]

        def timed(way: str) -> float:
            found = self._seconds_of_steps(way, flat, samples, clients)
            memory.release(samples.device)
            return found

        return convolutions.fastest(timed)

    def _clients_at_a_time(self, runs: int) -> int | None:
        """As many clients as fit the free memory by the estimate, before any data are loaded; None without an estimate."""
        how, where = self.how, str(self.device)
        if how.chunk or how.engine_on(where) == "loop":
            return None
        if how.estimate:
            return how.estimate
        room = memory.room(self.device, fixed=how.deterministic)
        if room is None:
            return None
        needed = estimate(self.spec, self.data, how, where)
        return None if needed is None else needed.fitting(room, runs)

    def _require_together(self, flat: Flat, samples: Samples) -> None:
        """Raises UserError if a user's own model cannot be computed for two clients at once."""
        batch = np.concatenate(self.data.partition.train)[:2]
        plan = Plan.through([batch, batch], len(batch))
        made = BatchedExecutor(flat, samples)
        # PyTorch warns that it computes an operation for one client after another.
        warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
        try:
            trained = made.do(Sgd(plan, *_copies(flat, samples, 2), self.spec.train.lr))
            made.do(Evaluate(plan, trained.models, trained.buffers))
        except Exception as error:
            if memory.ran_out(error):
                raise
            reason = in_a_line(error).partition(". ")[0]
            raise UserError(
                f"Model '{self.spec.model}' cannot be computed for all clients at once: {reason}.",
                "Add --engine loop, or write it without changing tensors in place and without deciding by their values.",
            ) from error
        finally:
            made.close()

    def _seconds_of_steps(self, way: str, flat: Flat, samples: Samples, clients: int) -> float:
        """Seconds of STEPS training steps with the run's own model and batches, captured as in the run."""
        batch = np.concatenate(self.data.partition.train)[: self.spec.train.batch_size]
        plan = Plan.through([np.tile(batch, STEPS)] * clients, len(batch))
        rows, buffers = _copies(flat, samples, clients)
        made = BatchedExecutor(flat, samples, capture=capture(self.how.capture, samples.device), convolution=way)
        try:
            return convolutions.seconds(samples.device, lambda: made.do(Sgd(plan, rows, buffers, 1e-4)))
        finally:
            made.close()


def prepare(spec: RunSpec, data: FederationData, device: torch.device, how: Execution) -> Prepared:
    return Prepared(spec, methods.make(spec.method), data, device, how)


def _copies(flat: Flat, samples: Samples, clients: int) -> tuple[Tensor, Tensor]:
    """Initial models [clients, P] and buffers, on the samples' device."""
    rows, buffers = flat.row(), flat.buffer_row(samples.dtype)
    return (
        rows.to(samples.device, samples.dtype).repeat(clients, 1),
        buffers.to(samples.device, samples.dtype).repeat(clients, 1),
    )
