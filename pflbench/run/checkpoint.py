"""Checkpoints of unfinished runs: the method's state and BatchNorm buffers after a round, in a file."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pflbench import interrupts
from pflbench.engine import memory
from pflbench.errors import UserError
from pflbench.run.places import Storage
from pflbench.store.runs import Run


@dataclass(frozen=True)
class Snapshot:
    """Everything that the remaining rounds depend on, after round t and the reception of round t + 1.

    Random streams are not stored: they follow from seed, round and client. `carried` holds plain numbers of the round loop.
    """

    t: int
    state: Any  # the method's frozen dataclass of tensors
    buffers: dict[str, Tensor]
    carried: dict[str, Any]


def owner(run: Run) -> str:
    """Identifies the run of a checkpoint, also among runs that had the same number before one was removed."""
    return f"{run.key}/{run.attempt}/{run.created_at}"


def tensors(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """A method's state as named tensors: "w", and "base.w" where a state contains another."""
    found: dict[str, Tensor] = {}
    for field in dataclasses.fields(state):
        value, name = getattr(state, field.name), f"{prefix}{field.name}"
        found |= tensors(value, f"{name}.") if dataclasses.is_dataclass(value) else {name: value}
    return found


def _filled(like: Any, values: Mapping[str, Tensor], prefix: str = "") -> Any:
    """The inverse of `tensors`."""
    new = {}
    for field in dataclasses.fields(like):
        value, name = getattr(like, field.name), f"{prefix}{field.name}"
        new[field.name] = _filled(value, values, f"{name}.") if dataclasses.is_dataclass(value) else values[name]
    return dataclasses.replace(like, **new)


class Checkpoints:
    """The checkpoint of one run. owner: the result of the function `owner`.

    name: of its file, without the suffix. every: seconds between checkpoints. last: the last whole round, which `keep` saves.
    wrong: why `load` refused the stored checkpoint, such as "is damaged".
    """

    def __init__(self, place: Storage, name: str, owner: str, every: float = 30.0) -> None:
        self.place, self.name = place, f"{name}.pt"
        self.owner, self.every = owner, every
        self.last: Snapshot | None = None
        self.wrong = ""
        self.seconds = 0.0  # of the last save
        self._saved_at = time.monotonic()

    def reach(self, snapshot: Snapshot, over: bool) -> None:
        """Takes the last whole round, and saves it if it is time to and the run is not over."""
        self.last = snapshot
        # Large checkpoints less often: saving should take at most a fiftieth of the time.
        interval = max(self.every, 50 * self.seconds) if self.every else 0.0
        if not over and time.monotonic() - self._saved_at >= interval:
            self.keep()

    def keep(self) -> None:
        """Saves the last whole round, if there is one. Signals wait: PyTorch would turn them into its own errors."""
        if self.last is not None:
            with interrupts.held():
                self.save(self.last)
            self._saved_at = time.monotonic()

    def save(self, snapshot: Snapshot) -> None:
        """Writes the checkpoint as a whole or not at all. Raises UserError."""
        begun = time.perf_counter()
        content = {**vars(snapshot), "state": tensors(snapshot.state), "owner": self.owner}
        try:
            with self.place.write(self.name) as out:
                torch.save({**content, "sha256": _digest(content)}, out)
        except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
            raise UserError(
                f"The checkpoint {self.name} could not be written to {self.place}: {str(error).splitlines()[0]}.",
                "Is the disk full? All finished rounds are in the database.",
            ) from error
        self.seconds = time.perf_counter() - begun

    def load(self, like: Any, device: torch.device) -> Snapshot | None:
        """The snapshot, with a state of the type of `like`; None if there is none, or a `wrong` one.

        Raises UserError if it cannot be read at the moment: starting over would overwrite it.
        """
        try:
            file = self.place.read(self.name)
            if file is None:
                return None
            with file, interrupts.held():
                content = torch.load(file, map_location=device, weights_only=True)
            self.wrong = self._wrong(content, like)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise UserError(
                    f"The checkpoint {self.name} cannot be read from {self.place}: {error.strerror or error}.",
                    "Nothing is lost: the same command resumes once the file can be read. Without the file the run starts over.",
                ) from error
            self.wrong = "is damaged"  # a truncated file points before its beginning
        except Exception as error:  # any fault of the file: the run starts over
            if memory.ran_out(error) or isinstance(error, MemoryError):
                raise
            self.wrong = "is damaged"
        if self.wrong:
            return None
        return Snapshot(content["t"], _filled(like, content["state"]), content["buffers"], content["carried"])

    def _wrong(self, content: dict[str, Any], like: Any) -> str:
        if content["sha256"] != _digest(content):
            return "is damaged"
        if content["owner"] != self.owner:
            return "is another run's"
        parts, expected = content["state"], tensors(like)
        fits = parts.keys() == expected.keys() and all(
            (parts[name].shape, parts[name].dtype) == (value.shape, value.dtype) for name, value in expected.items()
        )
        return "" if fits else "has other shapes than the run's method and model"

    def remove(self) -> None:
        self.place.remove(self.name)


def _digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content of a checkpoint. PyTorch's own format does not detect changed bytes."""
    plain = [content["t"], content["owner"], content["carried"]]
    found = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for part in ("state", "buffers"):
        for name, value in sorted(content[part].items()):
            found.update(f"{part} {name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()
