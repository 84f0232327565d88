"""Convolutions of all clients at once: three ways with the same numbers, of which the fastest is taken on a GPU."""

import copy
import threading

import numpy as np
import pytest
import torch
from support.gpu import faultless
from support.gpu.trial import compare
from support.spies import on_call
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract.small import federation, tensors, train
from pflbench.engine import devices
from pflbench.engine.batched import convolutions
from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.batched.convolutions import CONVOLUTIONS, convolve_by, fastest
from pflbench.engine.batched.layers import Together
from pflbench.engine.samples import Samples
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.memory_estimate import Peak, footprint
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.run.prepared import prepare

CPU = torch.device("cpu")
CLIENTS, BATCH = 5, 4
LAYERS = {
    "plain": nn.Conv2d(3, 6, 3),
    "all at once": nn.Conv2d(3, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False),
    "stride": nn.Conv2d(3, 4, 3, stride=3),
    "same": nn.Conv2d(3, 6, 5, padding="same"),
    "one pixel": nn.Conv2d(3, 6, 1),
    "groups": nn.Conv2d(6, 12, 3, padding=1, groups=3),
    "not the same on both sides": nn.Conv2d(3, 6, 4, padding="same"),
    "reflected": nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"),
}


# -- the numbers ----------------------------------------------------------------------------------------------------------


def gradients(layer, params, x):
    def loss(params, x):
        out = functional_call(layer, params, (x,))
        return (out.sin() * torch.arange(out.numel(), dtype=out.dtype).view(out.shape)).sum()

    return vmap(grad_and_value(loss, argnums=(0, 1)))(params, x)


def by_clients(layer, params, x):
    of = [gradients(layer, {k: v[i, None] for k, v in params.items()}, x[i, None]) for i in range(len(x))]
    return torch.utils._pytree.tree_map(lambda *each: torch.cat(each), *of)


@pytest.fixture
def case(request):
    """A layer with the weights of clients, their images, and what each client's convolution gives by itself."""
    torch.manual_seed(0)
    layer = copy.deepcopy(LAYERS[request.param]).double()
    params = {name: torch.randn(CLIENTS, *p.shape, dtype=torch.float64) for name, p in layer.named_parameters()}
    x = torch.randn(CLIENTS, BATCH, layer.in_channels, 9, 8, dtype=torch.float64)
    return layer, params, x, by_clients(layer, params, x)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("most", [None, 2, 1], ids=lambda most: f"{most or 'all'} clients at a time")
@pytest.mark.parametrize("way", ["groups", "unfold"])
@pytest.mark.parametrize("case", LAYERS, indirect=True)
def test_a_layer(case, way, most, monkeypatch):
    layer, params, x, expected = case
    if most:
        monkeypatch.setattr(convolutions, "CHANNELS", most * max(layer.in_channels, layer.out_channels))
        (_, out), positions = layer(x[0]).shape[:2], layer(x[0])[0, 0].numel()
        assert out == layer.out_channels
        monkeypatch.setattr(convolutions, "WINDOWS", most * BATCH * positions * layer.weight[0].numel())
    convolve_by(layer, way)
    torch.testing.assert_close(gradients(layer, params, x), expected, rtol=1e-11, atol=1e-11)


def test_channels_of_a_call_end_where_cuda_s_grids_do(monkeypatch):
    """A block of ResNet-18 with 512 channels, of 128 clients: 65,536 channels."""
    channels = []
    on_call(monkeypatch, F, "conv2d", lambda x, *_: channels.append(x.shape[1]))
    layer = nn.Conv2d(512, 2, 1)
    convolve_by(layer, "groups")
    params = {"weight": torch.zeros(128, 2, 512, 1, 1), "bias": torch.zeros(128, 2)}
    out = vmap(lambda p, x: functional_call(layer, p, (x,)))(params, torch.ones(128, 1, 512, 1, 1))
    assert out.shape == (128, 1, 2, 1, 1)
    assert channels == [512 * 64] * 2


@pytest.mark.parametrize("engine", ["batched", "captured"])
@pytest.mark.parametrize("way", CONVOLUTIONS)
@pytest.mark.parametrize(("name", "model"), [("fedala", "cnn"), ("fedavg", "resnet20")])
def test_rounds_of_the_loop_executor(name, model, way, engine):
    method = methods.make(methods.spec(name, {"max_init_epochs": "2"} if name == "fedala" else {}))
    few = {"n": (11, 8, 5), "lr": 0.02}
    fed = federation(model, engine, convolution=way, **few)
    expected, found = tensors(train(method, federation(model, "loop", **few), 1)), tensors(train(method, fed, 1))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9)
    assert fed.executor.record()["steps"]["convolution"] == way


@pytest.mark.parametrize("way", CONVOLUTIONS)
def test_captured_on_the_gpu_made_of_python(way):
    with faultless() as gpu:
        found = compare(gpu, "fedala", "cnn in colours", convolution=way)
    assert found.off <= 1e-9, found.where
    assert not found.apart
    assert found.replays


def test_images_need_no_gradient(monkeypatch):
    """Of the first layer: half of its work backward."""
    folded = []
    on_call(monkeypatch, F, "fold", lambda x, *_: folded.append(x.shape[1]))
    fed = federation("cnn", "batched", n=(5, 5), convolution="unfold")
    fed.at(1).sgd(fed.everyone(fed.initial()), fed.all_trainable())
    assert folded == [2 * 32 * 25], "two clients, windows of the second layer"


# -- which way ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("takes", "chosen"),
    [((1.0, 1.0, 1.0), "groups"), ((1.0, 0.98, 0.99), "groups"), ((1.0, 0.5, 0.9), "search"), ((1.0, 0.5, 0.4), "unfold")],
)
def test_the_fastest_is_taken(takes, chosen):
    assert fastest(dict(zip(CONVOLUTIONS, takes, strict=True)).__getitem__) == chosen


@pytest.fixture
def images(tmp_path):
    """Specification and setting of a CNN on a few images."""

    def made(model="cnn", **more):
        np.savez(tmp_path / "own.npz", x=np.zeros((60, 16, 16), np.uint8), y=np.arange(60) % 3)
        few = {"clients": 4, "beta": 50.0, "min_samples": 4, "batch_size": 5, **more}
        (spec,) = plan(RunOptions(("fedavg",), (f"npz:{tmp_path / 'own.npz'}",), tmp_path, model, **few))
        return spec, load_federation_data(spec, tmp_path)

    return made


@pytest.mark.parametrize(("join_ratio", "chunk", "clients"), [(1.0, None, 4), (0.75, None, 3), (1.0, 2, 2)])
def test_the_run_s_own_steps_are_timed(images, join_ratio, chunk, clients, monkeypatch):
    """Forward and backward, each way in a thread of its own, in which PyTorch knows nothing of what cuDNN chose for another."""
    spec, setting = images(join_ratio=join_ratio)
    seen, backward_threads, backward = {way: set() for way in CONVOLUTIONS}, set(), Together.backward

    def noted(own, asked):
        step = torch.backends.cudnn.benchmark, asked.models.shape[0], threading.current_thread()
        seen[own.convolution].add(step)

    def noted_backward(*arguments):
        backward_threads.add(threading.current_thread())
        return backward(*arguments)

    on_call(monkeypatch, BatchedExecutor, "_sgd", noted)
    monkeypatch.setattr(Together, "backward", staticmethod(noted_backward))
    with faultless():
        fed = prepare(spec, setting, find_device("auto"), Execution(chunk=chunk)).federation()
        gpu = devices.of(fed.device)
        assert gpu.memory_reserved(fed.device) < 1.1 * gpu.memory_allocated(fed.device), "what timing took is given back"
    steps = [(way, *step) for way, all_steps in seen.items() for step in all_steps]
    assert [step[:3] for step in steps] == [(way, way == "search", clients) for way in CONVOLUTIONS]
    assert len(backward_threads) == len(CONVOLUTIONS)
    assert backward_threads == {thread for *_, thread in steps}
    assert fed.executor.inner.convolution in CONVOLUTIONS
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize(
    ("device", "model", "asked", "chosen"),
    [
        ("meta", "cnn", "auto", "measured"),
        ("meta", "cnn", "search", "search"),
        ("meta", "mlp", "unfold", None),
        ("cpu", "cnn", "auto", None),
    ],
)
def test_there_is_a_choice_for_convolutions_on_a_gpu_alone(device, model, asked, chosen, images, monkeypatch):
    spec, setting = images(model)
    samples = Samples(setting.arrays.x, setting.arrays.y, torch.float32, torch.device(device))
    monkeypatch.setattr(convolutions, "fastest", lambda _: "measured")
    run = prepare(spec, setting, torch.device(device), Execution(device, "batched", convolution=asked))
    assert run.convolution(run.initial_model(), samples, 4) == chosen


def test_memory_for_columns_is_in_the_estimate(images):
    spec, setting = images("resnet20", batch_size=11)
    taken, said = [], []
    for way in ("groups", "unfold"):
        fed = prepare(spec, setting, CPU, Execution("cpu", "batched")).federation()
        fed.executor = BatchedExecutor(fed.flat, fed.executor.inner.samples, convolution=way)
        with Peak() as peak:
            fed.at(1).sgd(fed.everyone(fed.initial()), fed.all_trainable())
        taken.append(peak.most)
        found = footprint(spec, setting, Execution("cuda:7", "batched", convolution=way, capture="none"))
        said.append(found.copies + found.activations)
    columns = 4 * 11 * 16 * 16 * (9 * 16)
    assert said[1] - said[0] == 2 * 4 * columns, "of the first blocks, and their gradient: four clients"
    assert 0.4 < (taken[1] - taken[0]) / (said[1] - said[0]) <= 1
