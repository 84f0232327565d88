"""What every method must keep, whatever it is. No method is exempt by name: a new one in METHODS is tested by being there."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small import EXECUTORS, federation, tensors, train

from pflbench import methods
from pflbench.checkpoint import Checkpoints, Snapshot
from pflbench.errors import Diverged
from pflbench.methods import METHODS
from pflbench.spec import MethodSpec

pytestmark = pytest.mark.parametrize("name", METHODS)


def make(name):
    return methods.make(MethodSpec(name=name))


def assert_same(a, b, tolerance=0.0):
    for field, value in tensors(a).items():
        torch.testing.assert_close(tensors(b)[field], value, rtol=0, atol=tolerance, msg=lambda m, f=field: f"{f}: {m}")


def test_it_says_what_it_is(name):
    cls = methods.load(name)
    assert cls.title
    assert cls.venue
    assert cls.algorithm
    assert cls.category
    assert cls.__doc__
    for h in methods.hyperparameters(name):
        assert h.help, f"{name}.{h.name} is not explained"


def test_its_defaults_are_valid_and_complete(name):
    spec = methods.spec(name, {})
    assert set(spec.hyperparameters) == {h.name for h in methods.hyperparameters(name)}
    assert methods.spec(name, {k: str(v) for k, v in spec.hyperparameters.items()}) == spec


def test_state_and_shapes(name):
    fed = federation()
    state = train(make(name), fed)
    assert dataclasses.is_dataclass(state)
    assert state.__dataclass_params__.frozen
    assert all(isinstance(v, torch.Tensor) for v in tensors(state).values())
    models = make(name).deployed(state)
    assert models.shape in [(fed.flat.size,), (fed.size, fed.flat.size)]
    assert models.isfinite().all()
    for extra, _ in make(name).series(state).values():
        assert extra.shape in [(fed.flat.size,), (fed.size, fed.flat.size)]


def test_the_same_seed_gives_the_same_numbers(name):
    assert_same(train(make(name), federation()), train(make(name), federation()))


def test_another_seed_gives_others(name):
    a, b = (make(name).deployed(train(make(name), federation(seed=seed))) for seed in (0, 1))
    assert not torch.equal(a, b)


@pytest.mark.parametrize("model", ["mlp", "batchnorm", "fasttext"])
@pytest.mark.parametrize("engine", EXECUTORS[1:])
@pytest.mark.parametrize("join_ratio", [1.0, 0.5])
def test_all_executors_agree(name, model, engine, join_ratio):
    settings = {"join_ratio": join_ratio, "local_epochs": 2}
    loop, batched = federation(model, "loop", **settings), federation(model, engine, **settings)
    a, b = train(make(name), loop), train(make(name), batched)
    assert_same(a, b, 1e-10)
    for slot in loop.buffers:
        torch.testing.assert_close(batched.buffers[slot], loop.buffers[slot], rtol=0, atol=1e-10)
    everyone = torch.arange(loop.size)
    first, second = (f.evaluate(make(name).deployed(s), everyone, make(name).slot) for f, s in ((loop, a), (batched, b)))
    assert first.correct.tolist() == second.correct.tolist()
    assert first.loss == pytest.approx(second.loss, abs=1e-9)


def test_all_executors_agree_in_single_precision(name):
    a, b = (make(name).deployed(train(make(name), federation("cnn", e, dtype="float32", lr=0.02))) for e in EXECUTORS[:2])
    torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


@pytest.mark.parametrize("drop_last", ["auto", "always", "never"])
def test_all_executors_agree_on_partial_batches(name, drop_last):
    a, b = (train(make(name), federation("mlp", e, n=(13, 4, 1, 22), drop_last=drop_last)) for e in EXECUTORS[:2])
    assert_same(a, b, 1e-10)


def test_who_does_not_take_part_is_left_alone(name):
    fed, method = federation(join_ratio=0.5), make(name)
    state = train(method, fed, 2)
    now, later = fed.at(3), fed.at(4)
    S, S_later = now.cohort(3), later.cohort(4)
    updated = method.update(now, state, S)
    received = method.receive(later, updated, S_later)
    for before, after, cohort in ((state, updated, S), (updated, received, S_later)):
        outside = [i for i in range(fed.size) if i not in cohort.tolist()]
        for field, value in tensors(after).items():
            if value.dim() and value.shape[0] == fed.size:
                assert torch.equal(value[outside], tensors(before)[field][outside]), field


def test_checkpoint_and_restore(name, tmp_path):
    fed, method = federation("batchnorm"), make(name)
    half = train(method, fed, 2)
    checkpoints = Checkpoints(tmp_path, 1, owner="me")
    checkpoints.save(Snapshot(2, half, fed.buffers, {"best": 0.5}))
    resumed = federation("batchnorm")
    loaded = checkpoints.load(method.init(resumed), torch.device("cpu"))
    resumed.buffers.update(loaded.buffers)
    assert_same(train(method, resumed, 2, loaded.state, start=3), train(method, federation("batchnorm"), 4))


def test_empty_and_tiny_clients(name):
    for engine in EXECUTORS:
        fed, method = federation("batchnorm", engine, n=(0, 1, 2, 17), tests=(3, 0, 1, 4)), make(name)
        models = method.deployed(train(method, fed))
        assert models.isfinite().all()
        if models.dim() == 2:
            assert torch.equal(models[0], fed.initial()), "an empty client keeps the initial model"
        scores = fed.evaluate(models, torch.arange(4), method.slot)
        assert scores.clients.tolist() == [0, 2, 3], "a client without test data is left out"
        assert scores.total.tolist() == [3, 1, 4]


def test_non_finite_values_stop_it_naming_client_and_round(name):
    for engine in EXECUTORS:
        fed = federation(engine=engine, lr=1e200)
        with pytest.raises(Diverged, match=r"client \d+ has a non-finite value .* in round \d+"):
            train(make(name), fed)


def test_batches_depend_on_seed_round_and_client_alone(name, monkeypatch):
    fed = federation()
    seen = []
    original = fed.executor.sgd

    def spy(rows, buffers, plan, *arguments):
        seen.append(plan)
        return original(rows, buffers, plan, *arguments)

    monkeypatch.setattr(fed.executor, "sgd", spy)
    train(make(name), fed, 1)
    now = fed.at(1)
    expected = now.batches(now.cohort(1))
    assert any(
        len(plan) == len(expected) and all((a[: len(b)] == b).all() for a, b in zip(plan.order, expected.order, strict=True))
        for plan in seen
    )
