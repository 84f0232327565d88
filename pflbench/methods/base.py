"""The interface of methods: state in, state out. A run without clocks, checkpoints and database (`run.training`, `run.round`):

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as _dataclass
from torch import Tensor, nn

from pflbench.spec import Value

if TYPE_CHECKING:
    from pflbench.engine.federation import Federation
    from pflbench.spec import RunSpec, TrainSpec

_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)


def method(cls: type) -> Any:
    """Decorator: a frozen dataclass whose hyperparameters are validated when it is made."""
    return _dataclass(frozen=True, config=_CONFIG)(cls)


def hyper(default: Any, help: str, *, search: tuple[Any, ...] = (), **limits: Any) -> Any:
    """A hyperparameter: default, description, the paper's search range, and limits (gt, ge, lt, le)."""
    return Field(default, description=help, json_schema_extra={"search": list(search)}, **limits)


# Numbers of hyperparameters that may also be a word.
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Aggregation = Literal["weighted", "uniform"]


def aggregated(default: Aggregation) -> Any:
    """The hyperparameter `aggregation`, for `fed.mean`, of methods that are published with both means."""
    return hyper(default, "mean over the cohort by sample count, or uniform")


@dataclass(frozen=True)
class Welcome:
    """What new clients get, and how they adapt it to their own data (methods.md 2.13).

    models: [K, P], what each begins with. how: further arguments of `Federation.fit`, such as `columns`; by default the
    protocol's optimizer trains all columns. statistics: new clients begin with the mean of the training clients' BatchNorm
    buffers of this model; None: with the initial ones.
    """

    models: Tensor
    how: Mapping[str, Any] = field(default_factory=dict)
    statistics: str | None = "model"


class Method(ABC):
    """A federated method.

    The state is a frozen dataclass of tensors, or of such dataclasses, with everything that lasts from round to round; it is
    the checkpoint.
    """

    name: ClassVar[str]  # of a plug-in, for the command line; by default the name of its file
    title: ClassVar[str]
    authors: ClassVar[str]
    venue: ClassVar[str]
    algorithm: ClassVar[str]  # where the paper defines it, e.g. "Algorithm 1"
    category: ClassVar[str]
    fine_tuned: ClassVar[bool] = False  # clients are tested with the global model after fine-tuning it (methods.md 2.11)
    version: ClassVar[int] = 1  # raise it whenever a change alters results: it is part of a run's key
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # preset -> hyperparameters that it changes (methods.md 0.6)
    # The same for values that the user must set explicitly, since clients then adapt on labelled test data.
    presets_on_test_labels: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    tested_model: ClassVar[str] = "model"  # the client's model that is evaluated, whose BatchNorm buffers are used
    shared_models: ClassVar[tuple[str, ...]] = ("model",)  # the models whose BatchNorm buffers travel, if any do (4.3)

    random_test: ClassVar[bool] = False  # the tested models depend on random numbers drawn at reception or in the test
    depends_on_cohort: ClassVar[bool] = False  # what a client receives depends on who else is in the cohort
    # Plugging in ALA (methods.md 1.15): hyperparameters whose values it fixes, or why it cannot be plugged in.
    ala_decides: ClassVar[Mapping[str, Value]] = {}
    ala_refused: ClassVar[str] = ""
    own_parts: ClassVar[str] = ""  # what it has beside the user's model, with the number of parameters (`model`)
    optimizer_refused: ClassVar[str] = ""  # why local training needs SGD (methods.md 2.3)
    upload_refused: ClassVar[str] = ""  # why its uploads cannot be compressed (methods.md 2.14)

    def model(self, backbone: nn.Module) -> nn.Module:
        """The module that is trained: the user's model, or one around it with parts of the method's own (methods.extended)."""
        return backbone

    @abstractmethod
    def init(self, fed: Federation) -> Any:
        """The state before round 1."""

    @abstractmethod
    def receive(self, fed: Federation, s: Any, S: Tensor) -> Any:
        """Server -> clients of cohort S: download and local initialisation. E1 evaluates `deployed` of the state after this."""

    @abstractmethod
    def update(self, fed: Federation, s: Any, S: Tensor) -> Any:
        """Local training, upload, aggregation."""

    @abstractmethod
    def deployed(self, s: Any) -> Tensor:
        """The models that clients would use now: [N, P], or [P] if all use the same."""

    def check(self, train: TrainSpec) -> Iterator[str]:
        """Warnings about this method under a protocol, before a run begins. Raises UserError for an impossible combination."""
        yield from ()

    def shared(self, fed: Federation) -> slice | Tensor:
        """The columns of a model that travel. A tensor of their numbers where they do not lie side by side: then without ALA."""
        return slice(0, fed.flat.size)

    def uses_test_labels(self) -> bool:
        """Whether clients adapt on labelled test data: tables mark such runs."""
        return False

    def canonical_values(self, spec: RunSpec) -> Mapping[str, Value]:
        """Hyperparameters whose number means the same as a word under this specification, with that word: both have one key.

        Called only if every client has training data.
        """
        return {}

    def welcome(self, fed: Federation, s: Any, new: Federation) -> Welcome | None:
        """What clients that never joined get from the state s of `fed`; None: the method's authors do not define it.

        new: the federation of the K new clients alone; their data must not change s.
        """
        return None

    def series(self, s: Any) -> dict[str, tuple[Tensor, str]]:
        """Further models to evaluate: name -> (models as in `deployed`, the model whose BatchNorm buffers are used)."""
        return {}
