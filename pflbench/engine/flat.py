"""A module's parameters as one row of P numbers, its buffers as another: the layout and both conversions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Span:
    """One tensor's place in the row."""

    name: str
    shape: torch.Size
    start: int
    stop: int


def _layout(tensors: Iterable[tuple[str, Tensor]]) -> tuple[Span, ...]:
    entries, start = [], 0
    for name, tensor in tensors:
        entries.append(Span(name, tensor.shape, start, start + tensor.numel()))
        start += tensor.numel()
    return tuple(entries)


def _view(rows: Tensor, entry: Span) -> Tensor:
    # Splitting one dimension never copies, whatever the strides of the others are.
    return rows[..., entry.start : entry.stop].view((*rows.shape[:-1], *entry.shape))


class Flat:
    """The layout of one module. Parameters are in the order of their registration, bottom layer first.

    The module names its `head` (last linear layer) and `blocks` (ALA's ranges, top first: methods.md 1.14, Table 5).
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = _layout(module.named_parameters())
        self.buffers = _layout(module.named_buffers())
        self.channels_last: bool = getattr(module, "channels_last", True)  # whether its 4-D tensors may have that format

    @cached_property
    def size(self) -> int:
        """P: parameters only, no buffers."""
        return self.parameters[-1].stop

    @cached_property
    def model_size(self) -> int:
        """Parameters of the user's model, the paper's Sigma: without what a method has beside it (methods.extended)."""
        net: str | None = getattr(self.module, "user_model", None)
        return self.size if net is None else self.columns([net]).stop

    @cached_property
    def buffer_size(self) -> int:
        return self.buffers[-1].stop if self.buffers else 0

    @cached_property
    def has_batch_norm(self) -> bool:
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())

    @cached_property
    def outside_batch_norm(self) -> Tensor:
        """The columns that do not belong to a BatchNorm layer, [P - P_BN]."""
        inside = torch.zeros(self.size, dtype=torch.bool)
        for name, module in self.module.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and any(True for _ in module.parameters()):
                inside[self.columns([name])] = True
        return inside.logical_not_().nonzero().squeeze(1)

    @property
    def has_features(self) -> bool:
        """Whether the module has a method `features`, the input of its head (methods.md 0.3)."""
        return hasattr(self.module, "features")

    def head_alone(self) -> Flat:
        """The layout of the head as a module of its own: its row is the columns `head` of this layout."""
        alone = Flat(self.module.get_submodule(str(self.module.head)))
        alone.channels_last = self.channels_last
        return alone

    def row(self) -> Tensor:
        """The module's parameters, [P]."""
        parameters = [p.detach().reshape(-1) for p in self.module.parameters()]
        if parameters[0].is_meta:  # `cat` on "meta" imports PyTorch's compiler, which takes seconds
            return parameters[0].new_empty(sum(map(len, parameters)))
        return torch.cat(parameters)

    def buffer_row(self, dtype: torch.dtype) -> Tensor:
        """The module's buffers, [B]; counters become numbers of `dtype`."""
        flat = [b.detach().reshape(-1).to(dtype) for b in self.module.buffers()]
        return torch.cat(flat) if flat else torch.empty(0, dtype=dtype)

    def views(self, rows: Tensor, columns: slice = slice(None)) -> dict[str, Tensor]:
        """Rows [..., P] as named tensors [..., *shape] that share their memory; only those within `columns`."""
        return {e.name: _view(rows, e) for e in self.within(columns)}

    def buffer_views(self, rows: Tensor) -> dict[str, Tensor]:
        """Buffer rows [..., B] as named tensors that share their memory."""
        return {e.name: _view(rows, e) for e in self.buffers}

    def within(self, columns: slice) -> tuple[Span, ...]:
        """The parameter tensors of a range of columns."""
        start, stop, _ = columns.indices(self.size)
        return tuple(e for e in self.parameters if start <= e.start and e.stop <= stop)

    def columns(self, names: Iterable[str]) -> slice:
        """The columns of the named submodules and parameters, which must lie side by side."""
        prefixes = tuple(f"{name}." for name in names)
        inside = [e for e in self.parameters if f"{e.name}.".startswith(prefixes)]
        start, stop = inside[0].start, inside[-1].stop
        if stop - start != sum(e.stop - e.start for e in inside):
            raise ValueError(f"the parameters of {', '.join(names)} do not lie side by side")
        return slice(start, stop)

    @cached_property
    def head(self) -> slice:
        """Columns of the last fully connected layer (methods.md 0.3)."""
        return self.columns([str(self.module.head)])

    @property
    def classes(self) -> int:
        """K: the head's outputs, which a user's model says, since its head may have several layers."""
        return int(getattr(self.module, "classes", self.within(self.head)[0].shape[0]))

    @property
    def width(self) -> int:
        """h: numbers that the head takes for a sample (methods.md 0.3)."""
        return self.within(self.head)[0].shape[-1]

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """Columns of ALA's blocks, top first."""
        blocks: tuple[tuple[str, ...], ...] = self.module.blocks  # type: ignore[assignment]
        return tuple(self.columns(names) for names in blocks)


def side_by_side(spans: Iterable[Span]) -> list[list[Span]]:
    """Groups of spans without gaps, in their order."""
    groups: list[list[Span]] = []
    for span in spans:
        if not groups or groups[-1][-1].stop != span.start:
            groups.append([])
        groups[-1].append(span)
    return groups


def sgd_step(w: Tensor, g: Tensor, rate: float | Tensor, out: Tensor | None = None) -> Tensor:
    """w - rate * g. rate: a number, or a tensor [], as `Federation.lr` is under a schedule."""
    return torch.addcmul(w, g, rate, value=-1, out=out) if isinstance(rate, Tensor) else torch.sub(w, g, alpha=rate, out=out)


def take(everyone: Tensor, S: Tensor) -> Tensor:
    """The rows of S, ascending positions: [c, ...]. If S is all clients, nothing is copied: matrices of models are large."""
    return everyone if len(S) == len(everyone) else everyone[S]


def put(everyone: Tensor, S: Tensor, rows: Tensor) -> Tensor:
    """Everyone's rows [N, ...] with new ones for S, ascending positions."""
    return rows if len(S) == len(everyone) else everyone.index_copy(0, S, rows)


def in_type(buffer: Tensor, dtype: torch.dtype) -> Tensor:
    """A buffer of a row in its own type: an average of integers is rounded, since 7 may have become 6.9999995."""
    return (buffer if dtype.is_floating_point else buffer.round()).to(dtype)
