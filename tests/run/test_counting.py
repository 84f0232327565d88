"""What a round must cost: by closed forms, and by PyTorch's own count of a real round."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, product
from typing import Any

import counting
import numpy as np
import pytest
import torch
from counting import Work
from support.cases import rest_slow
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pflbench import methods
from pflbench.contract.as_run import dealt
from pflbench.contract.small import federation
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.loop_executor import LoopExecutor
from pflbench.methods.base import Method
from pflbench.methods.extended import ClassTargets
from pflbench.run.federation_data import FederationData
from pflbench.run.flops import Costs, CountingExecutor, Flops
from pflbench.run.round import PHASES, rounds
from pflbench.spec import DataSpec, Dirichlet, RunSpec, TrainSpec

# The paper's CNN on 3 x 32 x 32: multiplications and additions of one sample's forward pass, layer by layer.
CONV_1 = 2 * 28 * 28 * 32 * (3 * 5 * 5)
CONV_2 = 2 * 10 * 10 * 64 * (32 * 5 * 5)
FC = 2 * 1600 * 512
OUTPUT = 2 * 512 * 10
FORWARD = CONV_1 + CONV_2 + FC + OUTPUT
# Backward costs each layer its forward once more for the weights and once for its input, which the first layer spares.
TRAINING = 3 * FORWARD - CONV_1
HEAD = 512 * 10 + 10
PARAMETERS = 32 * (3 * 25 + 1) + 64 * (32 * 25 + 1) + 512 * (1600 + 1) + HEAD
MIXING = ("fedamp", "heurfedamp", "fedfomo", "apple", "elastic")  # by products of all models with weights, 2 C P FLOPs and more
SAMPLE = 3 * 32 * 32 + 8  # bytes: one for each value, and the label
FLOAT = 4


def setting(
    train: tuple[int, ...], test: tuple[int, ...], x: np.ndarray | None = None, vocabulary: int | None = None
) -> FederationData:
    """Clients with so many samples each; images of 3 x 32 x 32 bytes, unless x is given, and ten classes."""
    x = np.zeros((sum(train) + sum(test), 3, 32, 32), dtype=np.uint8) if x is None else x
    return dealt(x, np.arange(len(x)) % 10, train, test, vocabulary=vocabulary)


def spec(method: str = "fedavg", model: str = "cnn", clients: int = 2, **hyperparameters: Any) -> RunSpec:
    return RunSpec(
        data=DataSpec(name="cifar10"),
        partition=Dirichlet(clients=clients, beta=0.1),
        model=model,
        train=TrainSpec(rounds=9, lr=0.1),
        method=methods.spec(method, {name: str(value) for name, value in hyperparameters.items()}, None),
    )


def plain(found: dict[str, Work]) -> dict[str, tuple[float, float]]:
    return {phase: (work.flops, work.bytes) for phase, work in found.items()}


def test_floor_of_fedavg_is_the_closed_form() -> None:
    """Batches of 10, the last partial one dropped: 2 + 3 steps on 50 samples."""
    found = plain(counting.work(spec(), setting((20, 35), (7, 5))))
    assert list(found) == list(PHASES)
    assert found["reception"] == (0, 0)
    assert found["evaluation"] == (12 * FORWARD, 12 * SAMPLE + PARAMETERS * FLOAT)  # one model for all
    assert found["update"] == (50 * TRAINING, 50 * SAMPLE + 5 * 2 * PARAMETERS * FLOAT)


def test_floor_of_ala_is_one_pass_over_the_head() -> None:
    """s = 80 %: 16 and 28 samples in 2 + 3 batches. They pass the layers below the head once; only the head is differentiated."""
    found = plain(counting.work(spec("fedala"), setting((20, 35), (7, 5))))
    below = 44 * (FORWARD - OUTPUT)
    weights = 5 * 2 * HEAD * FLOAT
    read = 2 * (PARAMETERS - HEAD) * FLOAT + 44 * SAMPLE
    assert found["reception"] == (below + 44 * 2 * OUTPUT, read + weights)
    assert found["evaluation"] == (12 * FORWARD, 12 * SAMPLE + 2 * PARAMETERS * FLOAT)  # every client its own
    assert found["update"] == plain(counting.work(spec(), setting((20, 35), (7, 5))))["update"]


@pytest.mark.parametrize(
    ("p", "below", "above"), [(1, CONV_1 + CONV_2 + FC, 2 * OUTPUT), (2, CONV_1 + CONV_2, 2 * FC + 3 * OUTPUT)]
)
def test_initial_stage_has_several_epochs_but_passes_frozen_layers_once(p: int, below: int, above: int) -> None:
    """At the earliest it ends after 11 epochs: only then there are ten losses after the first to agree."""
    stage = counting.work(spec("fedala", p=p), setting((20, 35), (7, 5)), t=2)["reception"]
    assert stage.flops == 44 * below + 11 * 44 * above


@pytest.mark.parametrize(
    ("method", "hyperparameters", "reception", "update"),
    [
        ("fedavg", {}, 0, 3),
        ("pfedme", {"K": 5}, 0, 5 * 3),
        ("fedala", {}, 3 / 4, 3),  # 28 samples in a last batch of 8; one of four layers
        ("fedala", {"p": 2}, 3 * 2 / 4, 3),
        ("fedrep", {"tau": 5}, 0, 5 * 3 / 4 + 3),
        ("feddeper", {}, 0, 2 * 3),
    ],
)
def test_steps_are_those_of_the_client_with_most(
    method: str, hyperparameters: dict[str, Any], reception: float, update: float
) -> None:
    """A gradient of the head goes through one of the CNN's four layers."""
    found = counting.work(spec(method, **hyperparameters), setting((20, 35), (7, 5)))
    assert {phase: work.steps for phase, work in found.items()} == {"reception": reception, "evaluation": 0, "update": update}


def test_floor_of_apple_has_its_products_with_all_core_models() -> None:
    """In each of 2 + 3 steps one for the personal model and one for the gradient of p; clients in step read all cores once."""
    found, base = (counting.work(spec(name), setting((20, 35), (7, 5)))["update"] for name in ("apple", "fedavg"))
    assert found.flops == base.flops + (2 + 3) * 2 * 2 * 2 * PARAMETERS
    relationships = (2 + 3) * 2 * 2 * FLOAT
    assert found.bytes == base.bytes + relationships + 3 * 2 * PARAMETERS * FLOAT


def test_of_an_embedding_only_the_rows_of_the_batch_move() -> None:
    """The first client has tokens 0 and 1 in its one batch, the second only token 0 in its two."""
    x = np.zeros((35, 6), dtype=np.int64)
    x[:10] = [0, 1, 1, 0, 0, 1]
    found = counting.work(spec(model="fasttext"), setting((10, 20), (3, 2), x, vocabulary=50))
    dense = 32 * 32 + 32 + 32 * 10 + 10
    tokens = 2 + 1 + 1  # of the three steps
    assert found["update"].bytes == 30 * (6 * 8 + 8) + 2 * FLOAT * (3 * dense + tokens * 32)
    assert found["evaluation"].bytes == 5 * (6 * 8 + 8) + FLOAT * (dense + 32)


@pytest.fixture
def mean_without_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of models as a sum, which PyTorch does not count; in place of a product, which it does."""

    def mean(fed: Federation, rows: Any, S: Any, aggregation: str = "weighted") -> Any:
        return rows.mean(0) if aggregation == "uniform" else (fed.shares(S).unsqueeze(1) * rows).sum(0)

    monkeypatch.setattr(Federation, "mean", mean)


@pytest.mark.parametrize(
    ("name", "model"),
    rest_slow(
        product(methods.METHODS, ("mlp", "batchnorm")),
        *((name, "mlp") for name in ("fedavg", "fedala", "fedrep", "apple", "pfedme")),
        ("fedrep", "batchnorm"),
    ),
)
@pytest.mark.usefixtures("mean_without_products")
def test_counted_is_what_a_real_round_takes(name: str, model: str) -> None:
    """Against PyTorch's count of a round that is really trained, but for the products with which models are aggregated.

    With BatchNorm the outputs of frozen layers depend on the batch: every epoch passes them again.
    """
    chosen = methods.make(methods.spec(name, {}, None))
    fed = federation(model, "batched", n=(12, 6, 11), tests=(3, 2, 4), around=chosen.model)
    samples = fed.executor.samples  # type: ignore[attr-defined]
    counted = counting.count(chosen, fed, samples)
    real = really_counted(chosen, fed)
    assert set(counted) == set(real)
    more = {phase: real[phase] - work.flops for phase, work in counted.items()}
    if name in MIXING:
        assert {flops % (2 * fed.size * fed.flat.size) for flops in more.values()} == {0}
        assert min(more.values()) >= 0
    else:
        assert set(more.values()) == {0, products_with_parts(fed.flat).get(name, 0)}
    assert counted["update"].flops > 0
    assert counted["update"].bytes > 0


@pytest.mark.parametrize("name", rest_slow(methods.METHODS, "fedala", "fedrep", "apple", "apfl", "fedcp"))
def test_a_run_counts_the_same_while_it_trains(name: str) -> None:
    chosen = methods.make(methods.spec(name, {}, None))
    fed = federation("mlp", "batched", n=(12, 6, 11), tests=(3, 2, 4), around=chosen.model)
    samples = fed.executor.samples  # type: ignore[attr-defined]
    expected = counting.count(chosen, fed, samples)
    fed.executor = CountingExecutor(fed.executor, Flops(Costs(fed.flat, samples.batch(torch.zeros(2, dtype=torch.int64))[0])))
    assert steady_flops(chosen, fed) == {phase: pytest.approx(work.flops) for phase, work in expected.items()}


def products_with_parts(flat: Flat) -> dict[str, int]:
    """FLOPs of the server's products of weights with three clients' heads and statistics (FedPAC), or bases (FedAS)."""
    head = flat.head.stop - flat.head.start
    statistics = flat.classes * flat.width
    return {"fedpac": 2 * 3 * 3 * head + 2 * 3 * statistics, "fedas": 2 * 3 * flat.head.start}


def really_counted(method: Method, fed: Federation) -> dict[str, Any]:
    """As `steady_flops`, by PyTorch's counter."""
    with FlopCounterMode(display=False) as counter:

        class Counted(LoopExecutor):
            flops = property(lambda _: counter.get_total_flops())  # type: ignore[assignment]

        samples = fed.executor.samples  # type: ignore[attr-defined]
        fed.executor = Counted(fed.flat, samples, workers=1)  # one thread: the count sees no other
        return steady_flops(method, fed)


def steady_flops(method: Method, fed: Federation) -> dict[str, Any]:
    """By phase, of the first steady round."""
    *_, (last, _, _) = islice(rounds(method, fed), counting.STEADY)
    return last.flops


@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_a_model_that_cannot_be_counted_is_trained_all_the_same(name: str) -> None:
    fed = federation(n=(12, 6))
    fed.executor = CountingExecutor(fed.executor, Flops(None))  # type: ignore[arg-type]  # has no costs of anything
    assert set(steady_flops(methods.make(methods.spec(name, {})), fed).values()) == {None}


def test_frozen_layers_of_the_users_model_inside_a_methods_module() -> None:
    def frozen(around: Callable[[nn.Module], nn.Module] | None) -> list[float]:
        fed = federation("cnn", "batched", dtype="float32", shape=(3, 32, 32), classes=10, around=around)
        costs = Costs(fed.flat, torch.zeros(2, 3, 32, 32))
        return [costs.frozen(columns) for columns in fed.flat.blocks]

    assert frozen(ClassTargets) == frozen(None) == [CONV_1 + CONV_2 + FC, CONV_1 + CONV_2, CONV_1, 0]


def test_cut_takes_a_share_of_every_client() -> None:
    found = setting((20, 35), (7, 5)).cut(0.5, least=4).partition
    assert [[len(part) for part in side] for side in (found.train, found.test)] == [[10, 17], [4, 4]]
    assert [len(part) for part in setting((20, 3), (7, 5)).cut(0.1, least=10).partition.train] == [10, 3]
