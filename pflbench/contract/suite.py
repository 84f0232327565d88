"""The contract suite: tests that every method must pass. No method is exempt by name.

A method's own test says `@pytest.mark.parametrize("name", ["my-method"])` over `class TestContract(Contract): ...`.
"""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pflbench import methods
from pflbench.contract import small
from pflbench.contract.small import EXECUTORS, in_a_pack, train
from pflbench.engine import rng
from pflbench.engine.batched.program import MIXED
from pflbench.engine.federation import Federation
from pflbench.errors import Diverged, UserError
from pflbench.methods.base import Method
from pflbench.run import new_clients
from pflbench.run.checkpoint import Checkpoints, Snapshot, tensors
from pflbench.run.places import Folder
from pflbench.run.round import HEADLINE, CommunicationRound, evaluate
from pflbench.spec import MethodSpec

FEW = (12, 4, 9, 7)  # samples of each client in tests that only compare two trainings
AGREE = [  # model, join ratio, engines
    ("mlp", 1.0, ("batched", "captured")),
    ("batchnorm", 0.75, ("batched in chunks", "captured")),
    ("fasttext", 1.0, ("batched in chunks", "captured")),
    ("fasttext", 0.5, ("batched",)),
    ("mlp", 0.5, ("batched", "batched in chunks")),
    ("batchnorm", 1.0, ("batched", "captured")),
]


def make(name: str) -> Method:
    return methods.make(MethodSpec(name=name))


def federation(name: str, *model: str, **settings: Any) -> Federation:
    """A small federation with the method's model."""
    return small.federation(*model, around=make(name).model, **settings)


def copied(state: Any) -> dict[str, torch.Tensor]:
    return {field: value.clone() for field, value in tensors(state).items()}


def assert_same(a: Any, b: Any, tolerance: float = 0.0) -> None:
    for field, value in tensors(a).items():
        torch.testing.assert_close(tensors(b)[field], value, rtol=0, atol=tolerance, msg=lambda m, f=field: f"{f}: {m}")  # type: ignore[misc]


def assert_same_buffers(a: Federation, b: Federation, tolerance: float = 1e-10) -> None:
    """Those of BatchNorm."""
    torch.testing.assert_close(b.buffers, a.buffers, rtol=0, atol=tolerance)


class Contract:
    """Subclass it in a test, parametrised by `name`: a method's name, or one with "+ala"."""

    def test_it_says_what_it_is(self, name: str) -> None:
        cls = methods.load(name)
        assert cls.title
        assert cls.venue
        assert cls.algorithm
        assert cls.category
        assert cls.__doc__
        for h in methods.hyperparameters(name):
            assert h.help, f"{name}.{h.name} is not explained"

    def test_its_defaults_are_valid_and_complete(self, name: str) -> None:
        spec = methods.spec(name, {})
        decided = methods.load(name).ala_decides if name.endswith("+ala") else {}
        free = {k: str(v) for k, v in spec.hyperparameters.items() if k not in decided}
        assert set(free) == {h.name for h in methods.hyperparameters(name)}
        assert spec.hyperparameters.items() >= decided.items()
        assert methods.spec(name, free) == spec

    def test_state_and_shapes(self, name: str) -> None:
        fed = federation(name, n=FEW)
        state = train(make(name), fed, 2)
        parameters = getattr(state, "__dataclass_params__", None)
        assert getattr(parameters, "frozen", False), "the state is a frozen dataclass"
        assert all(isinstance(v, torch.Tensor) for v in tensors(state).values())
        models = make(name).deployed(state)
        assert models.shape in [(fed.flat.size,), (fed.size, fed.flat.size)]
        assert models.isfinite().all()
        for extra, _ in make(name).series(state).values():
            assert extra.shape in [(fed.flat.size,), (fed.size, fed.flat.size)]

    def test_new_clients_get_models_or_nothing(self, name: str) -> None:
        """A method says what a client gets that never joined, or that its authors do not; it changes nothing by that."""
        fed, method = federation(name, "batchnorm", n=FEW), make(name)
        state = train(method, fed, 2)
        before, buffers = copied(state), {which: rows.clone() for which, rows in fed.buffers.items()}
        new = Federation(fed.flat, fed.executor, fed.protocol, fed.train_indices[:3], fed.test_indices[:3], 5, fed.labels)
        welcome = method.welcome(fed.at(3, receiving=True), state, new.at(3, receiving=True))
        results = new_clients.tested(method, fed.at(3, receiving=True), state, new)
        assert (results is None) == (welcome is None)
        if welcome is not None and results is not None:
            assert welcome.models.shape == (new.size, fed.flat.size)
            assert welcome.models.isfinite().all()
            assert [scores.clients.tolist() for scores in results] == [[0, 1, 2]] * (fed.protocol.new_epochs + 1)
            assert any(scores.loss.tolist() != results[0].loss.tolist() for scores in results), "they adapt"
        assert all(torch.equal(value, before[field]) for field, value in tensors(state).items())
        assert all(torch.equal(fed.buffers[which], rows) for which, rows in buffers.items())

    def test_the_same_seed_gives_the_same_numbers(self, name: str) -> None:
        assert_same(train(make(name), federation(name, n=FEW), 2), train(make(name), federation(name, n=FEW), 2))

    def test_another_seed_gives_others(self, name: str) -> None:
        a, b = (make(name).deployed(train(make(name), federation(name, n=FEW, seed=seed), 2)) for seed in (0, 1))
        assert not torch.equal(a, b)

    @pytest.mark.parametrize(("model", "join_ratio", "engines"), AGREE)
    def test_all_executors_agree(self, name: str, model: str, join_ratio: float, engines: tuple[str, ...]) -> None:
        """States, BatchNorm buffers and tests after a training are those of the loop; one client fills no batch."""
        settings: dict[str, Any] = {"n": FEW, "join_ratio": join_ratio, "local_epochs": 2}
        loop = federation(name, model, "loop", **settings)
        everyone, a = torch.arange(loop.size), train(make(name), loop, 2)
        tested = loop.evaluate(make(name).deployed(a), everyone, make(name).tested_model)
        for engine in engines:
            batched = federation(name, model, engine, **settings)
            b = train(make(name), batched, 2)
            assert_same(a, b, 1e-10)
            assert_same_buffers(loop, batched)
            again = batched.evaluate(make(name).deployed(b), everyone, make(name).tested_model)
            assert again.correct.tolist() == tested.correct.tolist()
            assert again.loss == pytest.approx(tested.loss, abs=1e-9)
            if engine == "captured":
                refused = set(batched.executor.record()["steps"]["apart"]) - {MIXED}
                assert not refused, f"steps that a GPU cannot replay: {', '.join(refused)}"

    def test_packed_runs_agree_with_separate_ones(self, name: str) -> None:
        """Where seeds train together, one row for all clients of a run, [P], comes as a row for each of them."""

        def of_seed(seed: int, engine: str = "captured") -> Federation:
            return federation(name, engine=engine, n=(13, 8, 5), join_ratio=0.7, seed=seed)

        together = in_a_pack([of_seed(0), of_seed(1)], lambda fed: train(make(name), fed, 2))
        for seed in (0, 1):
            assert_same(train(make(name), of_seed(seed, "loop"), 2), together[seed], 1e-10)

    def test_all_executors_agree_in_single_precision(self, name: str) -> None:
        """Over few steps: sooner or later a ReLU is within rounding of its kink, and two trainings that are both right part."""
        few: dict[str, Any] = {"n": (6, 8, 5), "dtype": "float32", "lr": 0.02}
        a, b = (make(name).deployed(train(make(name), federation(name, "cnn", e, **few), 2)) for e in EXECUTORS[:2])
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)

    @pytest.mark.parametrize("drop_last", ["always", "never"])
    def test_all_executors_agree_on_partial_batches(self, name: str, drop_last: str) -> None:
        a, b = (train(make(name), federation(name, "mlp", e, n=(8, 4, 1, 12), drop_last=drop_last), 2) for e in EXECUTORS[:2])
        assert_same(a, b, 1e-10)

    def test_what_it_says_of_optimizers_is_true(self, name: str) -> None:
        """It trains by `fed.sgd` alone, and so by any optimizer; or it says why not, and then has a step of its own."""
        few: dict[str, Any] = {"n": FEW, "join_ratio": 0.75, "local_epochs": 2}
        how = {**few, "optimizer": "momentum", "optimizer_state": "kept"}
        loop = federation(name, **how)
        if methods.load(name).optimizer_refused:
            with pytest.raises(UserError, match="method's own step"):
                train(make(name), loop, 1)
            return
        found, plain = train(make(name), loop, 1), train(make(name), federation(name, **few), 1)
        assert not torch.equal(make(name).deployed(found), make(name).deployed(plain)), "momentum changes nothing: take fed.sgd"
        found = train(make(name), loop, 1, found, start=2)
        captured = federation(name, engine="captured", **how)
        assert_same(found, train(make(name), captured, 2), 1e-10)
        assert_same_buffers(loop, captured)

    def test_a_schedule_is_followed(self, name: str) -> None:
        """Round 1 is that of a constant rate, round 2 is not."""
        how: dict[str, Any] = {"n": FEW, "lr_schedule": "step", "lr_step_every": 1, "lr_gamma": 0.5}
        fed, constant = federation(name, **how), federation(name, n=FEW)
        first, plain = train(make(name), fed, 1), train(make(name), constant, 1)
        assert_same(first, plain)
        second, plain = train(make(name), fed, 1, first, start=2), train(make(name), constant, 1, plain, start=2)
        same = torch.equal(make(name).deployed(second), make(name).deployed(plain))
        assert not same, "the rate stays the same: an own step takes fed.lr, not fed.protocol.lr"
        captured = federation(name, engine="captured", **how)
        assert_same(second, train(make(name), captured, 2), 1e-10)
        assert not set(captured.executor.record()["steps"]["apart"]) - {MIXED}

    def test_who_does_not_take_part_is_left_alone(self, name: str) -> None:
        fed, method = federation(name, n=(13, 8, 11, 4, 9, 6), join_ratio=0.34), make(name)
        state = train(method, fed, 2)
        now, later = fed.at(3), fed.at(4)
        S, S_later = now.cohort(3).tolist(), later.cohort(4).tolist()
        updated = method.update(now, state, now.cohort(3))
        received = method.receive(later, updated, later.cohort(4))
        for before, after, cohort in ((state, updated, S), (state, received, S + S_later)):
            outside = [i for i in range(fed.size) if i not in cohort]
            assert outside
            for field, value in tensors(after).items():
                if value.dim() and value.shape[0] == fed.size:
                    assert torch.equal(value[outside], tensors(before)[field][outside]), field

    def test_all_are_tested_at_one_moment_and_nobody_keeps_a_trace_of_it(self, name: str) -> None:
        """Outside the cohort a client is tested as if it were in it, and afterwards is what it was."""
        settings: dict[str, Any] = {"n": (12, 5, 9, 7, 6, 8), "join_ratio": 0.34}
        fed, method = federation(name, "batchnorm", evaluate="all", **settings), make(name)
        everyone, state = torch.arange(fed.size), method.init(fed)
        for t in (1, 2, 3):
            now, before = fed.at(t), state
            S = now.cohort(t)
            state = method.receive(now, before, S)
            together = now.scratch_copy()
            all_received = method.receive(together, before, everyone)
            counted, seen = now.ledger.traffic.copy(), set(now.ledger.artifacts)
            scores = evaluate(method, now, before, state, S)[HEADLINE]
            assert (now.ledger.traffic == counted).all(), "being tested is no traffic of the round"
            assert set(now.ledger.artifacts) == seen, "nor is it observed"
            assert scores.clients.tolist() == everyone.tolist()
            outside = [i for i in everyone.tolist() if i not in S.tolist()]
            for where, rows, clients in ((now, state, S.tolist()), (together, all_received, outside)):
                expected = where.evaluate(method.deployed(rows), everyone, method.tested_model)
                assert scores.correct[clients].tolist() == expected.correct[clients].tolist()
                assert scores.loss[clients] == pytest.approx(expected.loss[clients], abs=1e-9)
            if t == 3:
                break
            state = method.update(now, state, S)
        untested = federation(name, "batchnorm", **settings)
        assert_same(state, train(method, untested, 2))
        assert_same_buffers(fed, untested, 0)

    def test_a_round_without_a_test_changes_nothing(self, name: str) -> None:
        """Where `fed.test_follows` is false, a method may leave out what only a test needs."""
        often, seldom = federation(name, "batchnorm", n=FEW), federation(name, "batchnorm", n=FEW)
        assert_same(train(make(name), often, 2), train(make(name), seldom, 2, tested=False))
        assert_same_buffers(often, seldom, 0)

    def test_a_state_is_never_changed_in_place(self, name: str) -> None:
        """It may be the last whole round, which an interrupted run goes on from."""
        fed, method = federation(name, n=FEW, join_ratio=0.5), make(name)
        state = train(method, fed, 1)
        before = copied(state)
        updated = method.update(fed.at(2), state, fed.cohort(2))
        between = copied(updated)
        method.receive(fed.at(3), updated, fed.cohort(3))
        for kept, now in ((before, state), (between, updated)):
            changed = [field for field, value in tensors(now).items() if not torch.equal(value, kept[field])]
            assert not changed, f"the state that was given now has another {changed[0]}"

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_checkpoint_and_restore(self, name: str, dtype: str, tmp_path: Path) -> None:
        made = partial(federation, name, "batchnorm", n=FEW, dtype=dtype)
        fed, method = made(), make(name)
        half = train(method, fed, 2)
        checkpoints = Checkpoints(Folder(tmp_path), "1", owner="me")
        checkpoints.save(Snapshot(2, half, fed.buffers, {"best": 0.5}))
        resumed = made()
        loaded = checkpoints.load(method.init(resumed), torch.device("cpu"))
        assert loaded is not None, "the state that init makes has other fields, shapes or types than later ones"
        resumed.buffers.update(loaded.buffers)
        assert_same(train(method, resumed, 1, loaded.state, start=3), train(method, made(), 3))

    def test_clients_may_fail_after_reception(self, name: str) -> None:
        """`update` then gets fewer clients than `receive` did."""
        fed, method = federation(name, n=FEW, dropout=0.5), make(name)
        assert method.deployed(train(method, fed, 3)).isfinite().all()

    def test_the_server_works_with_what_it_gets(self, name: str) -> None:
        """Else compressed uploads would save traffic and cost no accuracy."""
        method = make(name)
        if method.upload_refused:
            return
        states, spared = [], False
        for upload in ("full", "topk:0.1"):
            fed = federation(name, n=FEW, upload=upload)
            now = CommunicationRound(method, fed, 1)
            states.append(tensors(now.update(now.receive(method.init(fed)))))
            spared = bool(now.training.ledger.spared.any())
        full, short = states
        same = all(torch.equal(value, short[field]) for field, value in full.items())
        assert not (spared and same), "use what fed.collect returns"

    def test_empty_and_tiny_clients(self, name: str) -> None:
        for engine in EXECUTORS:
            fed, method = federation(name, "batchnorm", engine, n=(0, 1, 2, 8), tests=(3, 0, 1, 4)), make(name)
            models = method.deployed(train(method, fed, 2))
            assert models.isfinite().all()
            if models.dim() == 2:
                assert torch.equal(models[0], fed.initial()), "an empty client keeps the initial model"
            scores = fed.evaluate(models, torch.arange(4), method.tested_model)
            assert scores.clients.tolist() == [0, 2, 3], "a client without test data is left out"
            assert scores.total.tolist() == [3, 1, 4]

    def test_non_finite_values_stop_it_naming_client_and_round(self, name: str) -> None:
        for engine in EXECUTORS:
            # So high that even a head alone cannot end at finite weights that separate the classes: FedRep at 1e200 does.
            fed = federation(name, engine=engine, n=FEW, lr=1e308)
            with pytest.raises(Diverged, match=r"client \d+ has a non-finite value .* in round \d+"):
                train(make(name), fed)

    def test_all_chance_depends_on_seed_round_and_client_alone(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """So all methods see the same cohorts and batches, and a resumed run what an uninterrupted one sees."""
        fed, original = federation(name, n=FEW, join_ratio=0.5), rng.stream
        drawn: list[tuple[Any, ...]] = []

        def stream(*what: Any) -> np.random.Generator:
            drawn.append(what)
            return original(*what)

        monkeypatch.setattr(rng, "stream", stream)
        before = torch.random.get_rng_state(), pickle.dumps(np.random.get_state())
        train(make(name), fed, 2)
        assert {seed for seed, *_ in drawn} == {fed.seed}
        for _, _, t, *client in drawn:
            assert t in (1, 2, 3)
            assert not client or client[0] in range(fed.size)
        assert torch.equal(torch.random.get_rng_state(), before[0]), "torch's global generator was used: take engine.rng.stream"
        assert pickle.dumps(np.random.get_state()) == before[1], "NumPy's global generator was used: take engine.rng.stream"
