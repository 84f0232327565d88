"""The parameters of the models' blocks (methods.md 4), for ALA's range. Building the models would import torch."""

from __future__ import annotations

# channels and height of an image, classes; of texts the vocabulary in place of both.
_IMAGES = {"mnist": (1, 28, 10), "cifar10": (3, 32, 10), "cifar100": (3, 32, 100), "tiny": (3, 64, 200)}
_TEXTS = {"agnews": (98_635, 4)}


def weights(model: str, dataset: str, p: int) -> int | None:
    """How many weights ALA learns: the parameters of the p top blocks, of all if p is larger.

    None for models and datasets that the paper does not have.
    """
    if dataset in _IMAGES and model == "cnn":
        sizes = _cnn(*_IMAGES[dataset])
    elif dataset in _IMAGES and model == "resnet18":
        sizes = _resnet18(_IMAGES[dataset][2])
    elif dataset in _TEXTS and model == "fasttext":
        sizes = _fasttext(*_TEXTS[dataset])
    else:
        return None
    return sum(sizes[:p])


def _cnn(channels: int, height: int, classes: int) -> tuple[int, ...]:
    pooled = ((height - 4) // 2 - 4) // 2
    return (512 + 1) * classes, (64 * pooled**2 + 1) * 512, (25 * 32 + 1) * 64, (25 * channels + 1) * 32


def _fasttext(vocabulary: int, classes: int) -> tuple[int, ...]:
    return (32 + 1) * classes, (32 + 1) * 32, 32 * vocabulary


def _resnet18(classes: int) -> tuple[int, ...]:
    """Two basic blocks of two 3x3 convolutions each in a stage, batch normalisation after each, 1x1 shortcuts between stages."""

    def stage(before: int, width: int) -> int:
        shortcut = (before + 2) * width if before != width else 0
        return 9 * width * (before + 3 * width) + 4 * 2 * width + shortcut

    stages = [stage(before, width) for before, width in ((256, 512), (128, 256), (64, 128), (64, 64))]
    return ((512 + 1) * classes, *stages, 3 * 49 * 64 + 2 * 64)
