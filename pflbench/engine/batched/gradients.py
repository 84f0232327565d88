"""Gradients of many clients at once, by `torch.func.vmap` over any nn.Module."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
from torch.nn.utils.stateless import _reparametrize_module

from pflbench.engine.batched.convolutions import convolutions
from pflbench.engine.batched.layers import change_buffers_in_place, compute_together, cross_entropy
from pflbench.engine.flat import Flat, in_type
from pflbench.engine.requests import ALL, Loss, Objective, output
from pflbench.engine.samples import Samples

Named = dict[str, Tensor]
IMAGES = 4  # dimensions of a batch of images, and of the kernels for them
Gradient = Callable[..., tuple[Named, Tensor, Tensor]]


def _called(function: Callable[..., Any], module: nn.Module, named: Named, x: Tensor, **further: Tensor) -> Any:
    """A function of a module and an input, with these parameters and buffers in the module."""
    with _reparametrize_module(module, named, tie_weights=True):
        return function(module, x, **further)


class _LookedUp(nn.Module):
    """Stands in an embedding's place; its parameter is the embedding's output for the batch."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, index: Tensor) -> Tensor:
        return self.weight


class Lookup:
    """The embedding of a model whose inputs are tokens: a step changes few of its rows.

    name: of the embedding's parameter. module: the model, with the batch's vectors [b, positions, d] as that parameter.
    """

    def __init__(self, module: nn.Module, layer: str) -> None:
        self.name = f"{layer}.weight"
        embedding = module.get_submodule(layer)
        assert isinstance(embedding, nn.Embedding)
        self.padding = embedding.padding_idx
        self.module = copy.deepcopy(module)
        self.module.set_submodule(layer, _LookedUp(module.get_parameter(self.name)))

    def vectors(self, weight: Tensor, tokens: Tensor) -> Tensor:
        """weight [c, V, d], tokens [c, b, positions] -> [c, b, positions, d]."""
        return weight[_clients(tokens), tokens]

    def descend(self, weight: Tensor, tokens: Tensor, gradient: Tensor, lr: float | Tensor, finished: Tensor | None) -> None:
        """Subtracts lr times the vectors' gradient from their rows, except for padding and for finished clients [c].

        A GPU sorts and adds up repeated rows in the same order every time, but copies a tensor that is not contiguous: so the
        rows of all models are addressed as one contiguous table of pieces, whose size divides both a vector and a model. The
        range of tokens is not checked again after `vectors`: some versions of PyTorch wait for that check.
        """
        change = gradient * -lr
        unchanged = None if self.padding is None else tokens == self.padding
        if finished is not None:
            theirs = finished[:, None, None]
            unchanged = theirs if unchanged is None else unchanged | theirs
        if unchanged is not None:
            change.masked_fill_(unchanged.unsqueeze(-1), 0)
        (clients, vocabulary, width), stride = weight.shape, weight.stride(0)
        piece = math.gcd(width, stride)
        pieces = ((clients - 1) * stride + vocabulary * width) // piece
        table = weight.as_strided((pieces, piece), (piece, 1))
        first = (_clients(tokens) * (stride // piece) + tokens * (width // piece)).unsqueeze(-1)
        at = first + torch.arange(width // piece, device=tokens.device)
        torch.ops.aten._index_put_impl_(table, [at], change.reshape(*at.shape, piece), True, True)


def _clients(tokens: Tensor) -> Tensor:
    return torch.arange(len(tokens), device=tokens.device)[:, None, None]


class Gradients:
    """Gradients of all clients' objectives. `module` is changed: its layers become those for all clients at once."""

    def __init__(self, flat: Flat, module: nn.Module, samples: Samples, loss: Loss) -> None:
        compute_together(module)
        self._buffers_in_place = change_buffers_in_place(module)
        self.flat = flat
        self.module = module
        self.samples = samples
        self.loss = cross_entropy if loss is F.cross_entropy else loss
        self._colours = convolutions(module) and samples.x.dim() == IMAGES and samples.x.shape[1] > 1

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of samples [c, b]. Colour images are stored as [b, c, ...], as a convolution in groups needs them."""
        if not self._colours:
            return self.samples.batch(index)
        x, y = self.samples.batch(index.t().contiguous())
        return x.transpose(0, 1), y.t()

    @cached_property
    def _lookup(self) -> Lookup | None:
        layer: str | None = getattr(self.flat.module, "lookup", None)
        return None if layer is None else Lookup(self.module, layer)

    def lookup(self, columns: slice) -> Lookup | None:
        """The lookup of a model that names its embedding (`lookup`), if `columns` train it."""
        trained = {entry.name for entry in self.flat.within(columns)}
        return self._lookup if self._lookup and self._lookup.name in trained else None

    def make(self, columns: slice = ALL, objective: Objective | None = None, lookup: Lookup | None = None) -> Gradient:
        """A function that gives gradients by name, losses [c] and new buffers [c, B].

        Its arguments: rows [c, P], buffers [c, B], index [c, b], references, weights, arguments of the step [c, ...].
        weights: each sample's share of the mean loss, [c, b]; None: equal shares, which a method's own objective requires.
        lookup: the gradient of its parameter is that of the looked-up vectors.
        """
        module = lookup.module if lookup else self.module
        trained = {e.name for e in self.flat.within(columns)}

        def loss_of(
            params: Named,
            constants: Named,
            buffered: Named,
            x: Tensor,
            y: Tensor,
            references: tuple[Named, ...],
            weights: Tensor | None,
            per_step: Mapping[str, Tensor],
        ) -> tuple[Tensor, Named]:
            named = {**params, **constants, **buffered}
            if objective is not None:
                # References come first: the trained module changes its buffers.
                frozen = [r | {k: v.clone() for k, v in buffered.items()} for r in references]
                compared = [_called(output, module, reference, x, **per_step) for reference in frozen]
                return objective(self.loss, y, _called(output, module, named, x, **per_step), *compared), buffered
            logits = functional_call(module, named, (x,))
            return self.loss(logits, y) if weights is None else (self.each(logits, y) * weights).sum(), buffered

        def gradients(
            w: Tensor,
            b: Tensor,
            index: Tensor,
            references: Sequence[Tensor] = (),
            weights: Tensor | None = None,
            per_step: Mapping[str, Tensor] = {},
        ) -> tuple[Named, Tensor, Tensor]:
            module.train()
            # A convolution in groups needs contiguous kernels: else they would be copied both forward and backward.
            views = {k: v.contiguous() if v.dim() > IMAGES else v for k, v in self.flat.views(w).items()}
            x, y = self.batch(index)
            if lookup is not None:
                views[lookup.name] = lookup.vectors(views[lookup.name], x)
            params = {k: v for k, v in views.items() if k in trained}
            constants = {k: v for k, v in views.items() if k not in trained}
            compared = tuple(self.flat.views(r) for r in references)
            dims = (0, 0, 0, 0, 0, 0, None if weights is None else 0, 0)
            per_client = vmap(grad_and_value(loss_of, has_aux=True), in_dims=dims)
            grads, (loss, after) = per_client(params, constants, self._own_buffers(b), x, y, compared, weights, per_step)
            buffers = [after[entry.name].reshape(len(b), -1).to(b.dtype) for entry in self.flat.buffers]
            return grads, loss, torch.cat(buffers, dim=1) if buffers else b

        return gradients

    def features(self, training: bool = True) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """(rows [c, P], buffers [c, B], index [c, b]) -> inputs of the head in training or evaluation mode, [c, b, ...]."""

        def of_client(params: Named, buffered: Named, x: Tensor) -> Tensor:
            out: Tensor = _called(lambda module, x: module.features(x), self.module, params | buffered, x)
            return out

        def features(w: Tensor, b: Tensor, index: Tensor) -> Tensor:
            self.module.train(training)
            out: Tensor = vmap(of_client)(self.flat.views(w), self._own_buffers(b), self.batch(index)[0])
            return out

        return features

    def logits(self, params: Named, buffered: Named, *inputs: Tensor) -> Tensor:
        """Logits of clients' models [c, ...] for inputs [c, b, ...], in evaluation mode."""
        self.module.eval()

        def of_client(params: Named, buffered: Named, *inputs: Tensor) -> Tensor:
            out: Tensor = functional_call(self.module, (params, buffered), inputs)
            return out

        logits: Tensor = vmap(of_client)(params, buffered, *inputs)
        return logits

    def each(self, logits: Tensor, y: Tensor) -> Tensor:
        """Each sample's loss: logits [b, ...], labels [b] -> [b]."""
        losses: Tensor = vmap(self.loss)(logits.unsqueeze(1), y.unsqueeze(1))
        return losses

    def _own_buffers(self, rows: Tensor) -> Named:
        """Copies of the buffers, which the module may change."""
        if not self.flat.buffers:
            return {}
        if self._buffers_in_place:
            return self.buffers(rows.clone())
        # The module may reshape a buffer: of one that is not contiguous this is a copy, and its changes would be lost.
        return {name: v.clone(memory_format=torch.contiguous_format) for name, v in self.buffers(rows).items()}

    def buffers(self, rows: Tensor) -> Named:
        """Buffer rows in the module's types."""
        types = {name: b.dtype for name, b in self.module.named_buffers()}
        return {k: in_type(v, types[k]) for k, v in self.flat.buffer_views(rows).items()}
