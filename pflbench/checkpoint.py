"""Checkpoints of unfinished runs: the method's state and BatchNorm buffers after a round, in a file beside the database."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from pflbench.errors import UserError

try:
    import fcntl
except ImportError:  # Windows: no advisory locks there
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Snapshot:
    """Everything that the rest of a run depends on, after round t and the reception of round t + 1.

    Random streams need no place here: they follow from seed, round and client. `carried` holds plain numbers of the round loop.
    """

    t: int
    state: Any  # the method's frozen dataclass of tensors
    buffers: dict[str, Tensor]
    carried: dict[str, float | int | None]


def folder(database: Path | None) -> Path:
    """Where checkpoints of a database's runs lie: beside an SQLite file, else in the working directory."""
    return Path(f"{database}.checkpoints") if database else Path("pflbench.checkpoints")


class Checkpoints:
    """The checkpoint of one run, and the lock that keeps a second process from running it."""

    def __init__(self, where: Path, run_id: int) -> None:
        self.file = where / f"{run_id}.pt"
        self._lock_file = where / f"{run_id}.lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises UserError if another process is at this run. The lock dies with the process, also when it is killed."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle = self._lock_file.open("w")
        except OSError as error:
            raise UserError(
                f"{self.file.parent} cannot be written: {error.strerror}.",
                "Checkpoints lie there; choose another place for --db.",
            ) from None
        with handle:
            _lock(handle)
            try:
                yield
            finally:
                self._lock_file.unlink(missing_ok=True)

    def save(self, snapshot: Snapshot) -> None:
        """Writes the checkpoint whole or not at all."""
        fields = {f.name: getattr(snapshot.state, f.name) for f in dataclasses.fields(snapshot.state)}
        content = {"t": snapshot.t, "state": fields, "buffers": snapshot.buffers, "carried": snapshot.carried}
        partial = self.file.with_suffix(".partial")
        try:
            with partial.open("wb") as handle:
                torch.save(content, handle)
                handle.flush()
                os.fsync(handle.fileno())
            partial.replace(self.file)
        finally:
            partial.unlink(missing_ok=True)

    def load(self, like: Any, device: torch.device) -> Snapshot | None:
        """The snapshot, with a state of the type of `like`; None if there is none or it cannot be read."""
        if not self.file.exists():
            return None
        try:
            content = torch.load(self.file, map_location=device, weights_only=True)
            state = dataclasses.replace(like, **content["state"])
        except Exception:  # a damaged checkpoint costs the time to start anew, never a wrong number
            return None
        return Snapshot(content["t"], state, content["buffers"], content["carried"])

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)
        if self.file.parent.is_dir() and not any(p.suffix == ".pt" for p in self.file.parent.iterdir()):
            for left in self.file.parent.glob(f"{self.file.stem}.*"):
                left.unlink(missing_ok=True)


def _lock(handle: IO[str]) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError("Another process is at this run already.", "Wait for it, or stop it first.") from None
