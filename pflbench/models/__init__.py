"""Models: the table of contents. It can be read without torch, which is imported when a model is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pflbench.errors import UserError, unknown
from pflbench.models import outside
from pflbench.spec import OwnModel

if TYPE_CHECKING:
    from pflbench.models.base import Backbone

__all__ = ["MODELS", "Entry", "build", "facts", "find", "names", "record"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A model: one line about it, its constructor, and what data it needs ("" if the given data will do)."""

    description: str
    construct: Callable[[Shape, int, int | None], Backbone]
    needs: Callable[[Shape, int | None], str]


def names() -> list[str]:
    """All models that have a name: built-in ones, then those of installed packages."""
    return [*MODELS, *(one.name for one in outside.packaged())]


def find(text: str) -> tuple[str, OwnModel | None]:
    """The name of a model in specifications, and its code where it is not built in.

    text: a name, or `FILE.py:NAME`. Raises UserError for what is no model.
    """
    found = outside.find(text, MODELS)
    return (text, None) if found is None else (found.name, found.source)


def record(name: str, own: OwnModel | None) -> dict[str, str]:
    """Where a model's code comes from, to be stored with a run; empty for built-in ones, which the commit describes."""
    return {} if own is None else outside.load(name, own).record()


def facts(name: str, own: OwnModel | None) -> dict[str, str]:
    """What is said of a model: `description`, `from`, and the SHA-256 of its code where it is not built in."""
    if own is None:
        return {"description": MODELS[name].description, "from": "pflbench"}
    code = outside.load(name, own)
    described = " ".join(inspect.cleandoc(getattr(code.make, "__doc__", None) or "").split("\n\n")[0].split())
    return {"description": described, "from": code.place, "sha256": own.content}


def build(name: str, input_shape: Shape, classes: int, vocabulary: int | None = None, own: OwnModel | None = None) -> Backbone:
    """The model `name` with its usual initial parameters, for samples of `input_shape` (without the batch).

    Images are (channels, height, width); texts are (positions,) and have the number of tokens in `vocabulary`. own: the code of
    a model that is not built in. Raises UserError if there is no such model or it does not fit the data.
    """
    if own is not None:
        from pflbench.models.own import build as built

        return built(outside.load(name, own), input_shape, classes, vocabulary)
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    if needs := MODELS[name].needs(input_shape, vocabulary):
        fitting = ", ".join(other for other, entry in MODELS.items() if not entry.needs(input_shape, vocabulary))
        given = "texts" if vocabulary is not None else " x ".join(map(str, input_shape))
        raise UserError(f"Model '{name}' needs {needs}, not {given}.", f"Models that fit this data: {fitting}.")
    return MODELS[name].construct(input_shape, classes, vocabulary)


def _cnn(shape: Shape, classes: int, vocabulary: int | None) -> Backbone:
    from pflbench.models.cnn import CNN

    return CNN(shape, classes)


def _cnn2(shape: Shape, classes: int, vocabulary: int | None) -> Backbone:
    from pflbench.models.cnn import EmnistCNN

    return EmnistCNN(shape, classes)


def _resnet18(shape: Shape, classes: int, vocabulary: int | None) -> Backbone:
    from pflbench.models.resnet import ResNet18

    return ResNet18(classes)


def _resnet20(shape: Shape, classes: int, vocabulary: int | None) -> Backbone:
    from pflbench.models.resnet20 import ResNet20

    return ResNet20(shape[0], classes)


def _resnet20_gn(shape: Shape, classes: int, vocabulary: int | None) -> Backbone:
    from pflbench.models.resnet20 import ResNet20, group_norm

    return ResNet20(shape[0], classes, group_norm)


def _fasttext(shape: Shape, classes: int, vocabulary: int | None) -> Backbone:
    from pflbench.models.fasttext import FastText

    assert vocabulary is not None  # `build` has asked `_texts`
    return FastText(vocabulary, classes)


def _logreg(shape: Shape, classes: int, vocabulary: int | None) -> Backbone:
    from pflbench.models.dense import LogisticRegression

    return LogisticRegression(shape, classes)


def _mlp(shape: Shape, classes: int, vocabulary: int | None) -> Backbone:
    from pflbench.models.dense import MLP

    return MLP(shape, classes)


def _images(shape: Shape, vocabulary: int | None) -> str:
    fits = vocabulary is None and len(shape) == 3 and min(shape[1:]) >= 16
    return "" if fits else "images of at least 16 x 16 pixels"


def _colour(shape: Shape, vocabulary: int | None) -> str:
    fits = vocabulary is None and len(shape) == 3 and shape[0] == 3
    return "" if fits else "images with 3 channels"


def _texts(shape: Shape, vocabulary: int | None) -> str:
    return "" if vocabulary is not None else "texts"


def _numbers(shape: Shape, vocabulary: int | None) -> str:
    return "" if vocabulary is None else "images or other numbers"


MODELS: dict[str, Entry] = {
    "cnn": Entry("4-layer CNN (2 convolutions, 2 linear layers)", _cnn, _images),
    "cnn2": Entry("2 convolutions, 2 linear layers, made for EMNIST", _cnn2, _images),
    "resnet18": Entry("ResNet-18 with batch normalisation", _resnet18, _colour),
    "resnet20": Entry("ResNet-20 with batch normalisation, made for CIFAR", _resnet20, _images),
    "resnet20-gn": Entry("ResNet-20 with group normalisation", _resnet20_gn, _images),
    "fasttext": Entry("fastText: mean embedding, 2 linear layers", _fasttext, _texts),
    "logreg": Entry("logistic regression", _logreg, _numbers),
    "mlp": Entry("multilayer perceptron with one hidden layer of 64 units", _mlp, _numbers),
}
