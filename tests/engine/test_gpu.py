"""What only a GPU can show: steps replayed as CUDA graphs give the numbers of the loop executor on the CPU, for every method.

Without a GPU these are skipped; `tests/engine/test_capture.py` and the contract suite show the same of recorded steps on a CPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pflbench import methods
from pflbench.contract import small
from pflbench.contract.small import train
from pflbench.engine.batched.program import MIXED
from pflbench.run.execution import Execution, exact_arithmetic, federation
from pflbench.run.plan import Wish, plan
from pflbench.run.setting import load_setting

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def made(name, device, how):
    request = Wish((name,), ("digits",), Path("data"), clients=5, beta=1.0, rounds=3, batch_size=40, dtype="float64")
    (spec,) = plan(request)
    return methods.make(spec.method), federation(spec, load_setting(spec, Path("data")), torch.device(device), how)


@pytest.mark.parametrize("name", methods.names(with_ala=True))
def test_graphs_on_a_gpu_give_the_numbers_of_the_loop_on_a_cpu(name):
    method, looped = made(name, "cpu", Execution("cpu", "loop", workers=1))
    _, graphed = made(name, "cuda", Execution("cuda", "batched", capture="graph"))
    with exact_arithmetic(torch.device("cuda")):
        expected, found = method.deployed(train(method, looped, 2)), method.deployed(train(method, graphed, 2))
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-9)
    record = graphed.executor.record()["steps"]
    assert record["capture"] == "graph"
    assert record["programs"] > 0
    assert set(record["apart"]) <= {MIXED}


def of_a_model(model, engine, dtype, shape, device="cpu"):
    """The models after two rounds of FedALA, and the losses of its training and of the evaluation of the third."""
    fed = small.federation(model, engine, dtype=dtype, shape=shape, device=device, lr=0.01)
    method = methods.make(methods.spec("fedala", {"max_init_epochs": "2"}))
    with exact_arithmetic(torch.device(device)):
        state = train(method, fed, 2)
        trained = fed.at(3)
        method.update(trained, method.receive(trained, state, trained.cohort(3)), trained.cohort(3))
        models = method.deployed(state)
        scores = fed.evaluate(models, fed.nobody_left_out())
    losses = torch.tensor([*trained.ledger.train_loss.values(), *scores.loss])
    return models.cpu().double(), losses, fed


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [("cnn", (1, 16, 16)), ("cnn", (3, 16, 16)), ("resnet20", (3, 16, 16)), ("resnet20-gn", (3, 16, 16)), ("fasttext", (20,))],
)
def test_models_on_a_gpu_give_the_numbers_of_the_loop_on_a_cpu(model, shape, dtype):
    """Exactly in float64. In float32 no further from these than the CPU's float32 is, but for a factor that other sums have."""
    exact, exact_losses, _ = of_a_model(model, "loop", "float64", shape)
    found, losses, fed = of_a_model(model, "captured", dtype, shape, "cuda")
    record = fed.executor.record()["steps"]
    assert record["programs"] > 0
    assert set(record["apart"]) <= {MIXED}
    if dtype == "float64":
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-9)
        torch.testing.assert_close(losses, exact_losses, rtol=1e-9, atol=1e-9)
    else:
        rounded, rounded_losses, _ = of_a_model(model, "loop", "float32", shape)
        assert (found - exact).norm() <= 10 * (rounded - exact).norm()
        assert (losses - exact_losses).norm() <= 10 * (rounded_losses - exact_losses).norm() + 1e-5


@pytest.mark.parametrize("way", [{"convolution": "search"}, {"convolution": "unfold"}, {"capture": "none"}, {"chunk": 2}])
def test_other_ways_on_a_gpu(way):
    method, looped = made("fedala", "cpu", Execution("cpu", "loop", workers=1))
    _, other = made("fedala", "cuda", Execution("cuda", "batched", **way))
    with exact_arithmetic(torch.device("cuda")):
        expected, found = method.deployed(train(method, looped, 1)), method.deployed(train(method, other, 1))
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-9)


def test_the_same_command_gives_the_same_numbers_on_a_gpu():
    runs = []
    for _ in range(2):
        method, fed = made("fedala", "cuda", Execution("cuda"))
        with exact_arithmetic(torch.device("cuda")):
            runs.append(method.deployed(train(method, fed, 2)))
    assert torch.equal(*runs)
