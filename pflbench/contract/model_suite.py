"""The contract suite for models: with it all methods, on all executors, train a model correctly. No model is exempt by name.

`pflbench models test` runs this on one model, made for the samples of one dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract.small import federation, tensors, train
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.models import build
from pflbench.models.base import Backbone
from pflbench.plugins.modules import inputs
from pflbench.spec import MethodSpec, OwnModel

CLIENTS = (7, 5, 2)  # samples of each: one batch and a part of one, one batch, a part of one
TOGETHER = ("batched", "batched in chunks", "captured")
# All layers; the head by itself; ALA's ranges, lowest and highest p; the features of the head.
METHODS = ("fedavg", "fedrep", "fedala", "fedphp")


@dataclass(frozen=True)
class ModelSubject:
    """A model, for samples of a shape."""

    name: str
    own: OwnModel | None
    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None

    def made(self, seed: int = 0) -> Backbone:
        """The model in float64."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(self.name, self.shape, self.classes, self.vocabulary, self.own).double()

    def inputs(self, count: int) -> Tensor:
        x = inputs(self.shape, self.vocabulary, count)
        return x if self.vocabulary is not None else x.double()

    def federation(self, engine: str = "loop") -> Federation:
        """A federation of few clients, in float64."""
        return federation(
            lambda *_: self.made(), engine, n=CLIENTS, shape=self.shape, classes=self.classes, vocabulary=self.vocabulary, lr=0.01
        )


def moved(model: nn.Module) -> nn.Module:
    """Moves parameters away from initial values of 0, which would block gradients to layers below."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype))
    return model


def trained(name: str, fed: Federation, **hyperparameters: Any) -> Iterator[tuple[str, Tensor]]:
    """The results of a round: the state, BatchNorm's and other buffers, the clients' tests."""
    method = methods.make(
        MethodSpec(name=name, hyperparameters={"start_round": 2, **hyperparameters} if name == "fedala" else {})
    )
    state = train(method, fed, 1)
    yield from tensors(state).items()
    yield from ((f"buffers of '{which}'", rows) for which, rows in fed.buffers.items())
    tested = fed.evaluate(method.deployed(state), torch.arange(fed.size), method.tested_model)
    yield "correct", torch.from_numpy(tested.correct)
    yield "loss", torch.from_numpy(tested.loss)
    fed.executor.close()


class ModelContract:
    """Parametrised by `subject`."""

    def test_logits_for_any_batch(self, subject: ModelSubject) -> None:
        model = subject.made()
        for batch, training in ((1, False), (5, False), (2, True), (5, True)):
            logits = model.train(training)(subject.inputs(batch))
            assert logits.shape == (batch, subject.classes)
            assert logits.isfinite().all()

    def test_the_head_makes_logits_of_features(self, subject: ModelSubject) -> None:
        model, x = subject.made().eval(), subject.inputs(3)
        torch.testing.assert_close(model.get_submodule(model.head)(model.features(x)), model(x), rtol=0, atol=1e-12)

    def test_head_and_blocks_are_trailing_parameters(self, subject: ModelSubject) -> None:
        flat = Flat(subject.made())
        assert flat.head.stop == flat.size, "the head comes last"
        assert [block.stop for block in flat.blocks] == [flat.size, *(block.start for block in flat.blocks[:-1])]
        assert flat.blocks[-1].start == 0, "the blocks hold every parameter"

    def test_a_gradient_reaches_every_parameter(self, subject: ModelSubject) -> None:
        model = moved(subject.made().train())
        named = dict(model.named_parameters())
        loss = F.cross_entropy(model(subject.inputs(8)), torch.arange(8) % subject.classes)
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        without = [name for name, gradient in zip(named, gradients, strict=True) if gradient is None or not gradient.any()]
        assert not without, f"no gradient reaches {', '.join(without)}"

    def test_the_same_seed_is_the_same_beginning(self, subject: ModelSubject) -> None:
        assert torch.equal(Flat(subject.made()).row(), Flat(subject.made()).row())
        assert torch.equal(Flat(subject.made()).buffer_row(torch.float64), Flat(subject.made()).buffer_row(torch.float64))

    def test_samples_do_not_see_one_another_when_they_are_tested(self, subject: ModelSubject) -> None:
        """Executors test in batches of different sizes."""
        model, x = moved(subject.made()).eval(), subject.inputs(4)
        alone = torch.cat([model(one[None]) for one in x])
        torch.testing.assert_close(model(x), alone, rtol=0, atol=1e-9)

    def test_nothing_is_kept_beside_parameters_and_buffers(self, subject: ModelSubject) -> None:
        """One federation, trained twice from the beginning: the second time nothing of the first is left."""
        fed = subject.federation()
        found = []
        for _ in range(2):
            fed.buffers.clear()
            found.append(tensors(train(methods.make(MethodSpec(name="fedavg")), fed, 1)))
        fed.executor.close()
        for name, value in found[0].items():
            assert torch.equal(found[1][name], value), name

    @pytest.mark.parametrize("method", METHODS)
    def test_all_executors_agree(self, subject: ModelSubject, method: str) -> None:
        if method == "fedrep" and Flat(subject.made()).head.start == 0:
            pytest.skip("a head alone")
        last = len(subject.made().blocks)
        for p in (1, last) if method == "fedala" and last > 1 else (1,):
            of_ala = {"p": p, "max_init_epochs": 2} if method == "fedala" else {}
            expected = dict(trained(method, subject.federation(), **of_ala))
            for engine in TOGETHER if method == "fedavg" else TOGETHER[:1]:
                found = together(method, subject, engine, **of_ala)
                for name, value in expected.items():
                    off = float((found[name].double() - value.double()).abs().amax()) if value.numel() else 0.0
                    assert off < 1e-8, f"{engine}: {name} of {method} is off by {off:.1e}"


def together(method: str, subject: ModelSubject, engine: str, **hyperparameters: Any) -> dict[str, Tensor]:
    """As `trained`; skips the test if `vmap` does not support the model, which `run` reports as well."""
    try:
        return dict(trained(method, subject.federation(engine), **hyperparameters))
    except RuntimeError as error:
        if "vmap" not in str(error) and "atching rule" not in str(error):
            raise
        pytest.skip(f"goes with --engine loop alone: {str(error).splitlines()[0][:200]}")
