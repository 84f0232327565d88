"""Optimizers and schedules are PyTorch's: beside clients with modules and torch.optim of their own, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from support.gpu import faultless
from support.gpu.trial import compare
from support.twins import Twin, close, rows
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from pflbench import methods
from pflbench.contract.small import EXECUTORS, federation, in_a_pack, train
from pflbench.contract.toy import q2
from pflbench.engine.batched.program import MIXED
from pflbench.engine.optimizers import Optimizer

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "momentum", "momentum": 0.8, "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "decay": {"optimizer": "sgd", "weight_decay": 0.1},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "cosine": {"lr_schedule": "cosine"},
    "step": {"lr_schedule": "step", "lr_step_every": 2, "lr_gamma": 0.5},
}
ROUNDS = 4


class OptimTwin(Twin):
    """Trains by torch.optim. A client's optimizer is a new one in every round, or the one that it has had before."""

    def __init__(self, fed):
        super().__init__(fed)
        self.own: dict[Any, tuple[nn.Module, torch.optim.Optimizer]] = {}

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        how = self.fed.protocol
        if how.optimizer == "adamw":
            return torch.optim.AdamW(module.parameters(), how.lr, weight_decay=how.weight_decay)
        return torch.optim.SGD(module.parameters(), how.lr, momentum=how.momentum or 0, weight_decay=how.weight_decay or 0)

    def rate(self, t: int) -> float:
        """As a PyTorch scheduler that is stepped once a round has it in round t."""
        how, one = self.fed.protocol, torch.optim.SGD([torch.zeros(1, requires_grad=True)], self.fed.protocol.lr)
        scheduler: Any = None
        if how.lr_schedule == "cosine":
            scheduler = CosineAnnealingLR(one, how.rounds)
        elif how.lr_schedule == "step":
            scheduler = StepLR(one, how.lr_step_every, how.lr_gamma)
        for _ in range(t - 1 if scheduler else 0):
            one.step()
            scheduler.step()
        return float(one.param_groups[0]["lr"])

    def train(self, which: Any, start: nn.Module, plan, i: int, t: int, anchor=None, strength: float = 0.0) -> nn.Module:
        """`which` of the models there are, from `start`, along the plan of the i-th client of the cohort."""
        if which not in self.own or self.fed.protocol.optimizer_state == "fresh":
            module = self.fresh()
            self.own[which] = module, self.optimizer(module)
        module, optimizer = self.own[which]
        self.load(module, start)
        optimizer.param_groups[0]["lr"] = self.rate(t)
        self.sgd(module, plan, i, anchor, strength, optimizer)
        return module


def both(engine: str, **how: Any):
    fed = federation("mlp", engine, **{"n": (13, 8, 11, 24), "rounds": ROUNDS, "local_epochs": 2, "join_ratio": 0.75, **how})
    return fed, OptimTwin(fed)


def ditto_by_hand(twin: OptimTwin, strength: float) -> None:
    """Personal models pulled towards the received one, beside FedAvg: two optimizers for each client."""
    for t in range(1, ROUNDS + 1):
        now = twin.fed.at(t)
        S = now.cohort(t)
        personal, shared = now.batches(S, 2, purpose="batches/personal"), now.batches(S)
        assert len(set(shared.steps())) > 1, "clients make different numbers of steps"
        received = twin.fresh()
        twin.load(received, twin.server)
        trained = []
        for i, client in enumerate(S.tolist()):
            mine = twin.clients[client]
            twin.load(mine, twin.train(("personal", client), mine, personal, i, t, received, strength))
            trained.append(twin.train(("shared", client), received, shared, i, t))
        twin.average(S, trained)


def cases() -> Iterator[Any]:
    """Every optimizer with every schedule, fresh and kept, on every executor; `make test` has each of them once or twice."""
    quick = {
        ("momentum", "cosine", "kept"): ("loop", "batched in chunks"),
        ("adamw", "step", "kept"): ("captured",),
        ("adamw", "constant", "fresh"): ("loop",),
        ("decay", "constant", "fresh"): ("batched",),
    }
    for optimizer, schedule, state, engine in product(OPTIMIZERS, SCHEDULES, ("fresh", "kept"), EXECUTORS):
        if (optimizer, state) != ("decay", "kept"):  # which keeps nothing
            marks = () if engine in quick.get((optimizer, schedule, state), ()) else pytest.mark.slow
            yield pytest.param(optimizer, schedule, state, engine, marks=marks)


@pytest.mark.parametrize(("optimizer", "schedule", "state", "engine"), list(cases()))
def test_ditto_with_torch_optim(optimizer, schedule, state, engine):
    """Three of four clients join: what is kept waits for the next time, and advances by a client's own steps alone."""
    fed, twin = both(engine, **{**OPTIMIZERS[optimizer], **SCHEDULES[schedule], "optimizer_state": state})
    ditto = methods.make(methods.spec("ditto", {"lam": 0.5}))
    trained = train(ditto, fed, ROUNDS)
    ditto_by_hand(twin, 0.5)
    close(trained.v, rows(twin.clients))
    close(trained.w, rows([twin.server])[0])
    kept = {name: value for name, value in fed.buffers.items() if "/" in name}
    assert bool(kept) == (state == "kept")
    for name, value in kept.items():
        where, _, entry = name.split("/")
        theirs = [twin.own.get(({"model": "shared"}.get(where, where), client)) for client in range(fed.size)]
        for row, own in zip(value, theirs, strict=True):
            assert own is not None, "in four rounds everyone takes part"
            expected = torch.cat([own[1].state[p][entry].double().reshape(-1) for p in own[0].parameters()])
            close(row, expected[: len(row)])


@pytest.mark.parametrize("how", [OPTIMIZERS["momentum"], pytest.param(OPTIMIZERS["adamw"], marks=pytest.mark.slow)])
def test_fine_tuning_until_it_converges_is_one_training(how):
    """Epoch by epoch, with an optimizer that goes on and begins anew in the next round; at the rate before any schedule."""
    settings = {"n": (13, 8), "local_epochs": 1, "lr_schedule": "cosine", "optimizer_state": "kept", **how}
    fed, whole = federation(**settings), federation(**settings)
    by_epoch = methods.make(methods.spec("fedavg-c", {"finetune_stop": "converge", "finetune_cap": 3, "finetune_threshold": 0}))
    at_once = methods.make(methods.spec("fedavg-c", {"finetune_epochs": 3}))
    a, b = train(by_epoch, fed, 2), train(at_once, whole, 2)
    close(a.theta, b.theta)
    assert all(name.startswith("model/") for name in fed.buffers if "/" in name), "a client that is tested keeps nothing of it"


def test_a_pack_keeps_each_run_s_own():
    """Two seeds with other cohorts as one program."""
    how = {**OPTIMIZERS["adamw"], **SCHEDULES["cosine"], "optimizer_state": "kept", "n": (13, 8, 5), "join_ratio": 0.7}
    fedavg = methods.make(methods.spec("fedavg", {}))
    feds = [federation(engine="captured", seed=seed, **how) for seed in (0, 1)]
    found = in_a_pack(feds, lambda fed: train(fedavg, fed, 3))
    assert feds[0].executor.record()["pack"]["apart"] == 0
    for seed, fed in enumerate(feds):
        alone = federation(seed=seed, **how)
        close(found[seed].w, train(fedavg, alone, 3).w)
        for name, value in alone.buffers.items():
            close(fed.buffers[name], value)


@pytest.mark.parametrize(
    ("name", "model", "how"),
    [
        ("ditto", "mlp", {**OPTIMIZERS["adamw"], **SCHEDULES["cosine"], "optimizer_state": "kept", "join_ratio": 0.5}),
        *(
            pytest.param(name, model, {**how, **SCHEDULES["cosine"]}, marks=pytest.mark.slow)
            for name, model, how in (
                ("fedrep", "mlp", {**OPTIMIZERS["momentum"], "optimizer_state": "kept"}),
                ("fedphp", "mlp", OPTIMIZERS["momentum"]),
                ("fedavg", "cnn", {}),
                ("fedala", "cnn", OPTIMIZERS["momentum"]),
                ("fedavg", "fasttext", OPTIMIZERS["adamw"]),
                ("fedavg", "fasttext", {}),
                *((name, "mlp", {}) for name in ("per-fedavg", "pfedme", "apple", "partialfed", "feddeper")),
            )
        ),
    ],
)
def test_on_a_gpu(name, model, how):
    """That of tests/support: captured, waiting no more often than plain SGD, and no step made anew when the rate changes."""
    with faultless() as world:
        plain, found = compare(world, name, model, rounds=3), compare(world, name, model, rounds=3, **how)
        assert found.off <= 1e-9, found.where
        assert set(found.apart) <= {MIXED}
        assert found.programs == plain.programs
        assert found.waited <= plain.waited


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_without_a_step_nothing_advances(optimizer):
    """A client of one sample has no batch that BatchNorm can be trained on."""
    how = {**OPTIMIZERS[optimizer], "optimizer_state": "kept", "n": (1, 12)}
    for engine in EXECUTORS:
        fed = federation("batchnorm", engine, **how)
        train(methods.make(methods.spec("fedavg", {})), fed, 2)
        kept = [value for name, value in fed.buffers.items() if "/" in name]
        assert kept
        assert all(not value[0].any() and value[1].any() for value in kept)


def test_single_precision_has_the_first_steps_of_adamw_right():
    """1 - 0.999 in single precision is off by 5e-5 of itself; what is printed of a step is not."""
    adamw, found = Optimizer(True, 0.0, 0.0), []
    for dtype in (torch.float64, torch.float32):
        w, gradient = torch.zeros(1, 7, dtype=dtype), torch.linspace(-1, 1, 7).to(dtype)[None]
        found.append(adamw.step(w, gradient, 1.0, adamw.begin(w))[0])
    exact, single = found
    torch.testing.assert_close(single.double(), exact, rtol=1e-6, atol=0)


def test_numbers_by_hand():
    """One weight on w^2 / 2, and Q2 (methods.md 2.3)."""
    for optimizer, expected in (
        (Optimizer(False, 0.9, 0.0), [0.9, 0.72, 0.486]),
        (Optimizer(True, 0.0, 0.0), [0.900000001, 0.8004122297]),
        (Optimizer(False, 0.0, 0.5), [0.85, 0.7225]),
    ):
        w = torch.ones(1, 1, dtype=torch.float64)
        state, seen = optimizer.begin(w), []
        for _ in expected:
            w, state = optimizer.step(w, w, 0.1, state)
            seen.append(float(w))
        assert seen == pytest.approx(expected, abs=1e-10)
    for engine in ("loop", "batched"):
        fed = q2(engine, epochs=2)
        fed.optimizer = Optimizer(False, 0.9, 0.0)
        uploads = fed.at(1).sgd(fed.everyone(fed.initial()), fed.all_trainable())
        torch.testing.assert_close(uploads, torch.tensor([[0.28, 0], [0, 0.56]], dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_rate_of_a_reception_is_that_before_any_schedule():
    fed, twin = both("loop", **SCHEDULES["cosine"])
    assert float(fed.at(2).lr) == pytest.approx(twin.rate(2))
    assert fed.at(2, receiving=True).lr == fed.protocol.lr
