"""What a method is: state in, state out. A run, without clocks, checkpoints and the database (`run.training`, `run.round`):

s = method.init(fed)
for t in range(1, rounds + 1):
    S = fed.cohort(t)
    s = method.receive(fed, s, S)  # server -> clients: download and local initialisation
    test(method.deployed(s))       # on each client's own test data: the accuracy after round t - 1
    s = method.update(fed, s, S)   # local training, upload, aggregation
test(method.deployed(method.receive(fed, s, fed.cohort(rounds + 1))))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as _dataclass
from torch import Tensor

from pflbench.spec import Value

if TYPE_CHECKING:
    from pflbench.engine.federation import Federation
    from pflbench.spec import RunSpec, TrainSpec

_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)


def method(cls: type) -> Any:
    """Decorator: a frozen dataclass whose hyperparameters are validated when it is made."""
    return _dataclass(frozen=True, config=_CONFIG)(cls)


def hyper(default: Any, help: str, *, search: tuple[Any, ...] = (), **limits: Any) -> Any:
    """A hyperparameter: its default, what it is, the paper's search range, and limits (gt, ge, lt, le)."""
    return Field(default, description=help, json_schema_extra={"search": list(search)}, **limits)


Aggregation = Literal["weighted", "uniform"]


def aggregated(default: Aggregation) -> Any:
    """The hyperparameter `aggregation` of methods for which both means are in use, for `fed.mean`."""
    return hyper(default, "mean over the cohort by sample count, or uniform")


class Method(ABC):
    """A federated method.

    The state is a frozen dataclass of tensors (or of such dataclasses) with everything the method carries from round to round;
    it is the checkpoint.
    """

    name: ClassVar[str]  # of a plug-in, under which it is run; without one it is the file's
    title: ClassVar[str]
    authors: ClassVar[str]
    venue: ClassVar[str]
    algorithm: ClassVar[str]  # where it is defined, e.g. "Algorithm 1"
    category: ClassVar[str]
    version: ClassVar[int] = 1  # raise it whenever a change alters results: it is part of a run's key
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # preset -> hyperparameters that it switches (methods.md 0.6)
    # What a preset would switch, but must be asked for by name, since clients then adapt on labelled test data.
    presets_on_test_labels: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    tested_model: ClassVar[str] = "model"  # which of a client's models is evaluated: its BatchNorm buffers are used
    shared_models: ClassVar[tuple[str, ...]] = ("model",)  # which of them travel, should BatchNorm buffers do so (4.3)

    depends_on_cohort: ClassVar[bool] = False  # what a client receives depends on who else is in the cohort
    # Plugging in ALA (methods.md 1.15): hyperparameters that it decides, or why it does not go with the method.
    ala_decides: ClassVar[Mapping[str, Value]] = {}
    ala_refused: ClassVar[str] = ""
    optimizer_refused: ClassVar[str] = ""  # why local training can be by no other optimizer than SGD (methods.md 2.3)

    @abstractmethod
    def init(self, fed: Federation) -> Any:
        """The state before round 1."""

    @abstractmethod
    def receive(self, fed: Federation, s: Any, S: Tensor) -> Any:
        """Server -> clients of cohort S: download and local initialisation. E1 evaluates what `deployed` says after this."""

    @abstractmethod
    def update(self, fed: Federation, s: Any, S: Tensor) -> Any:
        """Local training, upload, aggregation."""

    @abstractmethod
    def deployed(self, s: Any) -> Tensor:
        """The models that clients would use now: [N, P], or [P] where all use the same."""

    def check(self, train: TrainSpec) -> Iterator[str]:
        """Warnings about this method under a protocol, before anything runs. Raises UserError for what is impossible."""
        yield from ()

    def shared(self, fed: Federation) -> slice:
        """The columns of a model that travel."""
        return slice(0, fed.flat.size)

    def uses_test_labels(self) -> bool:
        """Whether clients adapt on labelled test data: such a run is marked in every table."""
        return False

    def canonical_values(self, spec: RunSpec) -> Mapping[str, Value]:
        """Hyperparameters whose number means under this specification what a word means, with that word: so both have one key.

        It is asked only where every client has training data.
        """
        return {}

    def series(self, s: Any) -> dict[str, tuple[Tensor, str]]:
        """Further models to evaluate beside the headline: name -> (models as in `deployed`, which)."""
        return {}
