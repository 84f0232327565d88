"""What a model is made of, for a reader: its parameters, its head and the blocks that ALA's p counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from pflbench.models import Shape, build
from pflbench.plugins.modules import plain_name
from pflbench.spec import OwnModel


class ModelPart(NamedTuple):
    """Submodules, and single parameters, by their names in the module; how many numbers they have."""

    names: str
    parameters: int


@dataclass(frozen=True)
class Anatomy:
    """blocks: from the top. buffers: numbers that training keeps beside the parameters, as BatchNorm's statistics."""

    parameters: int
    buffers: int
    head: ModelPart
    blocks: tuple[ModelPart, ...]


def anatomy(name: str, shape: Shape, classes: int, vocabulary: int | None = None, own: OwnModel | None = None) -> Anatomy:
    """Of a model for samples of a shape, as in `models.build`, which says what errors there are. Nothing is drawn."""
    with torch.device("meta"):
        model = build(name, shape, classes, vocabulary, own)
    sizes = {parameter: tensor.numel() for parameter, tensor in model.named_parameters()}

    def part(names: tuple[str, ...]) -> ModelPart:
        inside = (size for parameter, size in sizes.items() if any(f"{parameter}.".startswith(f"{one}.") for one in names))
        return ModelPart(" + ".join(map(plain_name, names)), sum(inside))

    return Anatomy(
        parameters=sum(sizes.values()),
        buffers=sum(buffer.numel() for buffer in model.buffers()),
        head=part((model.head,)),
        blocks=tuple(map(part, model.blocks)),
    )
