"""Models: the parameter counts of methods.md 4, their heads and blocks, and what the batched executor needs of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract import model_keeps_the_contract
from pflbench.contract.small import EXECUTORS, federation, train
from pflbench.errors import UserError
from pflbench.models import MODELS, build
from pflbench.models.charlstm import CharLSTM
from pflbench.spec import MethodSpec

MNIST, CIFAR, TINY, DIGITS, TEXT, HAR = (1, 28, 28), (3, 32, 32), (3, 64, 64), (1, 8, 8), (200,), (9, 1, 128)

# name, input shape, classes, vocabulary -> cumulative parameters and tensors of the p top blocks, p = 1, 2, ...
COUNTS = {
    ("cnn", MNIST, 10, None): ([5130, 529930, 581194, 582026], [2, 4, 6, 8]),
    ("cnn", CIFAR, 10, None): ([5130, 824842, 876106, 878538], [2, 4, 6, 8]),
    ("cnn", CIFAR, 100, None): ([51300, 871012, 922276, 924708], [2, 4, 6, 8]),
    ("cnn", TINY, 200, None): ([102600, 5640904, 5692168, 5694600], [2, 4, 6, 8]),
    ("cnn2", MNIST, 62, None): ([7998, 1187774, 1206270, 1206590], [2, 4, 6, 8]),
    ("resnet20", CIFAR, 10, None): ([650, 204170, 255242, 269258, 269722], [2, 20, 38, 56, 59]),
    ("resnet20-gn", CIFAR, 100, None): ([6500, 210020, 261092, 275108, 275572], [2, 20, 38, 56, 59]),
    ("fasttext", TEXT, 4, 98635): ([132, 1188, 3157508], [2, 4, 5]),
    ("resnet18", TINY, 200, None): (
        [102600, 8496328, 10596040, 11121608, 11269576, 11279112],
        [2, 17, 32, 47, 59, 62],
    ),
    ("charlstm", (80,), 81, 81): ([20817, 546129, 817489, 818137], [2, 5, 8, 9]),
    ("harcnn", HAR, 6, None): ([3078, 527878, 2232838, 2251334, 2253958], [2, 4, 6, 8, 10]),
    ("logreg", MNIST, 10, None): ([7850], [2]),
    ("mlp", DIGITS, 10, None): ([650, 650 + 64 * 65], [2, 4]),
}


def sample(shape: tuple[int, ...], vocabulary: int | None, batch: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if vocabulary:
        return torch.randint(vocabulary, (batch, *shape), generator=generator)
    return torch.randn(batch, *shape, generator=generator)


def small(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A model in float64 and a batch for it, small enough for many clients."""
    torch.manual_seed(0)
    colour, grey = (3, 16, 16), (1, 16, 16)
    shapes = {"cnn": grey, "cnn2": grey, "resnet18": colour, "resnet20": colour, "resnet20-gn": colour, "fasttext": (12,)}
    shape = {**shapes, "charlstm": (12,), "harcnn": (3, 1, 32)}.get(name, DIGITS)
    vocabulary = 30 if name in ("fasttext", "charlstm") else None
    model = build(name, shape, 5, vocabulary).double()
    x = sample(shape, vocabulary, batch=4)
    return model, x if vocabulary else x.double()


@pytest.mark.parametrize(("case", "expected"), COUNTS.items(), ids=lambda value: "-".join(map(str, value)))
def test_parameters_of_the_top_blocks(case, expected):
    model = build(*case)
    tensors = list(model.parameters())
    parameters, trailing = expected
    for p, (count, number) in enumerate(zip(parameters, trailing, strict=True), start=1):
        names = [name for block in model.blocks[:p] for name in block]
        of_blocks = {id(t) for name in names for t in model.get_submodule(name).parameters()}
        assert of_blocks == {id(t) for t in tensors[-number:]}, "the p top blocks are the trailing tensors"
        assert sum(t.numel() for t in tensors[-number:]) == count
    assert len(model.blocks) == len(parameters)
    assert len(tensors) == trailing[-1], "the blocks hold every parameter"
    assert model.blocks[0] == (model.head,)


def test_resnet_is_torchvisions():
    from pflbench._torchvision import torchvision

    torch.manual_seed(3)
    ours = build("resnet18", TINY, 200)
    torch.manual_seed(3)
    theirs = torchvision().models.resnet18(weights=None, num_classes=200)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert sum(b.numel() for b in ours.buffers()) == 9620
    x = sample(TINY, None, batch=2)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_head_of_the_features(name):
    model, x = small(name)
    model.eval()
    logits = model(x)
    assert logits.shape == (4, 5)
    head = model.get_submodule(model.head)
    assert isinstance(head, nn.Linear)
    features = model.features(x)
    assert features.shape == (4, head.in_features)
    torch.testing.assert_close(F.linear(features, head.weight, head.bias), logits)


TEXTBOOK = {  # ReLU before pooling, as methods.md 4.1, 4.4 and 4.5 write it
    "cnn": ("conv_1", nn.ReLU(), nn.MaxPool2d(2), "conv_2", nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), "fc", nn.ReLU(), "output"),
    "cnn2": ("conv_1", nn.ReLU(), "conv_2", nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), "fc", nn.ReLU(), "output"),
    "harcnn": (
        *("conv_1", nn.ReLU(), nn.MaxPool2d((1, 2)), "conv_2", nn.ReLU(), nn.MaxPool2d((1, 2)), nn.Flatten()),
        *("fc_1", nn.ReLU(), "fc_2", nn.ReLU(), "output"),
    ),
}


@pytest.mark.parametrize(
    ("name", "shape", "inputs"),
    [("cnn", MNIST, 1024), ("cnn", CIFAR, 1600), ("cnn", (3, 17, 22), 128), ("cnn2", MNIST, 9216), ("harcnn", HAR, 64 * 26)],
)
def test_a_network_equals_its_textbook_form(name, shape, inputs):
    """inputs: of its first linear layer. Channels-last inputs give the same."""
    model = build(name, shape, 10).double()
    textbook = nn.Sequential(*(model.get_submodule(part) if isinstance(part, str) else part for part in TEXTBOOK[name]))
    assert next(m for m in textbook if isinstance(m, nn.Linear)).in_features == inputs
    x = sample(shape, None).double()
    torch.testing.assert_close(model(x), textbook(x))
    y = torch.tensor([0, 3, 9])
    ours = torch.autograd.grad(F.cross_entropy(model(x), y), tuple(model.parameters()))
    theirs = torch.autograd.grad(F.cross_entropy(textbook(x), y), tuple(model.parameters()))
    torch.testing.assert_close(ours, theirs)
    model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), textbook(x))


RESNETS_20 = ("resnet20", "resnet20-gn")


@pytest.mark.parametrize("name", RESNETS_20)
def test_the_shape_of_resnet_20(name):
    model = build(name, CIFAR, 10).eval()
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules()) == 20
    seen = []
    for stage in (model.layer1, model.layer2, model.layer3):
        stage.register_forward_hook(lambda module, given, out: seen.append(tuple(out.shape[1:])))
    model(sample(CIFAR, None))
    assert seen == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
    statistics = sum(b.numel() for b in model.buffers())
    assert statistics == (2 * (7 * 16 + 6 * 32 + 6 * 64) + 19 if name == "resnet20" else 0)


def test_a_block_of_resnet_20_by_hand():
    block = build("resnet20", CIFAR, 10).double().layer2[0]
    x = F.relu(sample((16, 6, 6), None).double())

    def normalised(z):
        return (z - z.mean((0, 2, 3), keepdim=True)) / (z.var((0, 2, 3), keepdim=True, correction=0) + 1e-5).sqrt()

    hidden = normalised(F.conv2d(x, block.conv1.weight, stride=2, padding=1)).clamp(min=0)
    expected = normalised(F.conv2d(hidden, block.conv2.weight, padding=1))
    expected[:, :16] += x[:, :, ::2, ::2]
    torch.testing.assert_close(block(x), expected.clamp(min=0))


@pytest.mark.parametrize("name", ["cnn2", "harcnn", "charlstm", *RESNETS_20])
def test_the_executors_agree(name):
    """A round of FedAvg and its evaluation."""
    method = methods.make(MethodSpec(name="fedavg"))
    found = []
    for engine in EXECUTORS[:2]:
        fed = federation(name, engine, n=(11, 5), tests=(4, 3))
        models = method.deployed(train(method, fed, 1))
        scores = fed.evaluate(models, torch.arange(2))
        found.append((models, fed.buffers["model"], torch.from_numpy(scores.loss)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-9)
    assert not torch.equal(found[0][0], fed.initial())


def test_the_lstm_equals_pytorchs():
    """State and gradients of every parameter, where the second bias of nn.LSTM is 0."""
    model = CharLSTM(11, 5, width=4, hidden=6).double()
    theirs = nn.LSTM(4, 6, num_layers=2, batch_first=True).double()
    pairs = []
    for k, layer in enumerate((model.lstm_1, model.lstm_2)):
        pairs += [(layer.input.weight, getattr(theirs, f"weight_ih_l{k}")), (layer.input.bias, getattr(theirs, f"bias_ih_l{k}"))]
        pairs += [(layer.recurrent.weight, getattr(theirs, f"weight_hh_l{k}"))]
        nn.init.zeros_(getattr(theirs, f"bias_hh_l{k}"))
    with torch.no_grad():
        for own, other in pairs:
            other.copy_(own)
    x = sample((7,), 11)
    features, expected = model.features(x), theirs(model.embedding(x))[0][:, -1]
    torch.testing.assert_close(features, expected)
    found = torch.autograd.grad(features.square().sum(), [own for own, _ in pairs])
    torch.testing.assert_close(found, torch.autograd.grad(expected.square().sum(), [other for _, other in pairs]))


@pytest.mark.slow
def test_all_executors_train_the_lstm(capfd):
    """The contract suite, on few positions."""
    assert model_keeps_the_contract("charlstm", None, (5,), 6, 9)
    assert "11 passed" in capfd.readouterr().out, "and nothing skipped, as models that `vmap` cannot do are"


def test_fasttext_averages_over_all_positions_and_padding_gets_no_gradient():
    model = build("fasttext", (4,), 2, vocabulary=6)
    assert model.embedding.weight[0].abs().sum() == 0
    x = torch.tensor([[1, 5, 0, 0]])
    mean = (model.embedding.weight[1] + model.embedding.weight[5]) / 4
    torch.testing.assert_close(model.features(x)[0], model.hidden(mean))
    model(x).sum().backward()
    touched = model.embedding.weight.grad.abs().sum(1) > 0
    assert touched.tolist() == [False, True, False, False, False, True]


@pytest.mark.parametrize(
    ("case", "message", "fitting"),
    [
        (("cnn", TEXT, 4, 100), "needs images of at least 16 x 16 pixels, not texts", "fasttext, charlstm"),
        (("cnn", DIGITS, 10), "at least 16 x 16 pixels, not 1 x 8 x 8", "logreg, mlp"),
        (("cnn", HAR, 6), "pixels, not 9 x 1 x 128", "harcnn, logreg, mlp"),
        (("harcnn", (1, 1, 27), 6), "needs signals of at least 28 time steps", "logreg, mlp"),
        (
            ("resnet18", MNIST, 10),
            "needs images with 3 channels, not 1 x 28 x 28",
            "cnn, cnn2, resnet20, resnet20-gn, logreg, mlp",
        ),
        (("fasttext", CIFAR, 10), "needs texts, not 3 x 32 x 32", "cnn, cnn2, resnet18, resnet20, resnet20-gn, logreg, mlp"),
    ],
)
def test_a_model_that_does_not_fit_the_data(case, message, fitting):
    with pytest.raises(UserError, match=message) as caught:
        build(*case)
    assert caught.value.hint == f"Models that fit this data: {fitting}."
