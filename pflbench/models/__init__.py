"""Models: the table of contents. It can be read without torch, which is imported when a model is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pflbench.errors import UserError, unknown
from pflbench.plugins import installed
from pflbench.plugins import models as plugins
from pflbench.spec import OwnModel

if TYPE_CHECKING:
    from pflbench.models.base import Backbone

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A model: all that is said of it without building it, and how it is built."""

    title: str  # as tables and figures call it
    description: str
    lr: float  # its learning rate, where a dataset has none for it (methods.md 2.2; ResNet-20 and the EMNIST network: 1.16)
    blocks: tuple[str, ...]  # as the FedALA paper's Table 5 calls the layers that ALA ranges over, from the top
    needs: Callable[[Shape, int | None], str]  # of a sample's shape and the vocabulary: "" if they will do
    module: str  # of this package
    make: Callable[[Any, Shape, int, int | None], Backbone]  # from that module, for a shape, classes and vocabulary


def names() -> list[str]:
    """All models that have a name: built-in ones, then those of installed packages."""
    return [*MODELS, *(one.name for one in installed("model"))]


def find(text: str) -> tuple[str, OwnModel | None]:
    """The name of a model in specifications, and its code where it is not built in.

    text: a name, or `FILE.py:NAME`. Raises UserError for what is no model.
    """
    text = text.lower() if text.lower() in MODELS else text
    found = plugins.find(text, MODELS)
    return (text, None) if found is None else (found.name, plugins.source(found))


def title(name: str) -> str:
    """What tables and figures call a model; one that is not built in by its name."""
    return MODELS[name].title if name in MODELS else name


def learning_rate(name: str) -> float:
    """A built-in model's. Raises UserError for an unknown one."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name].lr


def record(name: str, own: OwnModel | None) -> dict[str, str]:
    """Where a model's code comes from, to be stored with a run; empty for built-in ones, which the commit describes."""
    return {} if own is None else plugins.record(plugins.load(name, own))


def facts(name: str, own: OwnModel | None) -> dict[str, str]:
    """What is said of a model: `description`, `from`, and the SHA-256 of its code where it is not built in."""
    if own is None:
        return {"description": MODELS[name].description, "from": "pflbench"}
    code = plugins.load(name, own)
    described = " ".join(inspect.cleandoc(getattr(code.value, "__doc__", None) or "").split("\n\n")[0].split())
    return {"description": described, "from": code.place, "sha256": own.content}


def build(name: str, input_shape: Shape, classes: int, vocabulary: int | None = None, own: OwnModel | None = None) -> Backbone:
    """The model `name` with its usual initial parameters, for samples of `input_shape` (without the batch).

    Images are (channels, height, width); texts are (positions,) and have the number of tokens in `vocabulary`. own: the code of
    a model that is not built in. Raises UserError if there is no such model or it does not fit the data.
    """
    if own is not None:
        from pflbench.plugins.modules import build as built

        return built(plugins.load(name, own), input_shape, classes, vocabulary)
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    if needs := MODELS[name].needs(input_shape, vocabulary):
        fitting = ", ".join(other for other, entry in MODELS.items() if not entry.needs(input_shape, vocabulary))
        given = "texts" if vocabulary is not None else " x ".join(map(str, input_shape))
        raise UserError(f"Model '{name}' needs {needs}, not {given}.", f"Models that fit this data: {fitting}.")
    module = import_module(f"pflbench.models.{MODELS[name].module}")
    return MODELS[name].make(module, input_shape, classes, vocabulary)


def _images(shape: Shape, vocabulary: int | None) -> str:
    fits = vocabulary is None and len(shape) == 3 and min(shape[1:]) >= 16
    return "" if fits else "images of at least 16 x 16 pixels"


def _colour(shape: Shape, vocabulary: int | None) -> str:
    fits = vocabulary is None and len(shape) == 3 and shape[0] == 3
    return "" if fits else "images with 3 channels"


def _signals(shape: Shape, vocabulary: int | None) -> str:
    fits = vocabulary is None and len(shape) == 3 and shape[1] == 1 and shape[2] >= 28
    return "" if fits else "signals of at least 28 time steps (channels x 1 x steps)"


def _texts(shape: Shape, vocabulary: int | None) -> str:
    return "" if vocabulary is not None else "texts"


def _numbers(shape: Shape, vocabulary: int | None) -> str:
    return "" if vocabulary is None else "images or other numbers"


RESNET20 = ("fc", "conv4_x", "conv3_x", "conv2_x", "conv1")
MODELS: dict[str, Entry] = {
    "cnn": Entry(
        "4-layer CNN", "4-layer CNN (2 convolutions, 2 linear layers)", 0.005, ("output", "fc", "conv_2", "conv_1"), _images,
        "cnn", lambda module, shape, classes, _: module.CNN(shape, classes),
    ),
    "cnn2": Entry(
        "2Conv+2Linear", "2 convolutions, 2 linear layers, made for EMNIST", 0.1, ("output", "fc", "conv_2", "conv_1"), _images,
        "cnn", lambda module, shape, classes, _: module.EmnistCNN(shape, classes),
    ),
    "resnet18": Entry(
        "ResNet-18", "ResNet-18 with batch normalisation", 0.1, ("fc", "conv5_x", "conv4_x", "conv3_x", "conv2_x", "conv1"),
        _colour, "resnet", lambda module, shape, classes, _: module.ResNet18(classes),
    ),
    "resnet20": Entry(
        "ResNet-20", "ResNet-20 with batch normalisation, made for CIFAR", 0.05, RESNET20, _images,
        "resnet20", lambda module, shape, classes, _: module.ResNet20(shape[0], classes),
    ),
    "resnet20-gn": Entry(
        "ResNet-20 (GN)", "ResNet-20 with group normalisation", 0.05, RESNET20, _images,
        "resnet20", lambda module, shape, classes, _: module.ResNet20(shape[0], classes, module.group_norm),
    ),
    "fasttext": Entry(
        "fastText", "fastText: mean embedding, 2 linear layers", 0.1, ("output", "hidden", "embedding"), _texts,
        "fasttext", lambda module, shape, classes, vocabulary: module.FastText(vocabulary, classes),
    ),
    "charlstm": Entry(
        "character LSTM", "LSTM of 2 layers, made for the next character of a text", 0.8,
        ("output", "lstm_2", "lstm_1", "embedding"), _texts,
        "charlstm", lambda module, shape, classes, vocabulary: module.CharLSTM(vocabulary, classes),
    ),
    "harcnn": Entry(
        "HARCNN", "2 convolutions over time, 3 linear layers, made for HAR", 0.01, ("output", "fc_2", "fc_1", "conv_2", "conv_1"),
        _signals, "harcnn", lambda module, shape, classes, _: module.HARCNN(shape, classes),
    ),
    "logreg": Entry(
        "logistic regression", "logistic regression", 0.1, ("output",), _numbers,
        "dense", lambda module, shape, classes, _: module.LogisticRegression(shape, classes),
    ),
    "mlp": Entry(
        "MLP", "multilayer perceptron with one hidden layer of 64 units", 0.1, ("output", "hidden"), _numbers,
        "dense", lambda module, shape, classes, _: module.MLP(shape, classes),
    ),
}  # fmt: skip
