"""The client and the rounds whose models a run keeps, for the trajectory in Figure 4 of the FedALA paper."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.spec import RunSpec


@dataclass(frozen=True)
class Follow:
    """The client whose models are kept before and after local training, and the rounds."""

    client: int
    first: int
    last: int

    @property
    def name(self) -> str:
        """The name of the arrays [2, P], one for each of these rounds."""
        return f"trajectory_{self.client}"

    def bytes(self, parameters: int, dtype: str) -> int:
        """Size before compression, which saves little. dtype: of the run."""
        return (self.last - self.first + 1) * 2 * np.dtype(dtype).itemsize * parameters


def parse(text: str) -> Follow:
    """ "4:140-200" -> client 4, rounds 140 to 200. Raises UserError for anything else."""
    found = re.fullmatch(r"(\d+):(\d+)-(\d+)", text)
    if not found or not 1 <= int(found[2]) <= int(found[3]):
        raise UserError(
            f"--trajectory {text} is not possible.", "It is CLIENT:FROM-TO, a client and rounds from 1, as 4:140-200."
        )
    return Follow(*map(int, found.groups()))


def check(follow: Follow, spec: RunSpec) -> None:
    """Raises UserError for a client or rounds that the run does not have."""
    if follow.client >= (N := spec.training_clients):
        raise UserError(f"--trajectory: no client {follow.client} trains.", f"Clients that train are 0 to {N - 1}.")
    if follow.last > spec.train.rounds:
        raise UserError(f"--trajectory: there is no round {follow.last}.", f"The run has {spec.train.rounds} rounds.")
