"""Builds a user's model, checks it once, and wraps it as a `Backbone` for the engine."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import UninitializedParameter

from pflbench.errors import UserError
from pflbench.models.base import Backbone
from pflbench.plugins import TRACEBACK, Plugin, in_a_line

NET = "net."
SEED, BATCH = 0, 2
_LOGITS = "Its forward(x) takes samples [batch, ...] and returns logits [batch, classes], without softmax."
_UNUSED = (
    "Use them in forward, or leave them out. A lambda that holds `self` does not use those of a copy: write a method instead."
)

Sizes = dict[str, Any]
"""What a constructor may ask for: input_shape, classes, vocabulary (None without texts)."""

_checked: dict[tuple[Any, ...], bool] = {}  # `Own.channels_last` of the models that were checked


class Own(Backbone):
    """A user's module as `net`, with its head and blocks found."""

    user_model = "net"
    classes: int

    def __init__(self, net: nn.Module, head: str, blocks: Sequence[Sequence[str]]) -> None:
        super().__init__()
        self.net = net
        self.head = NET + head  # type: ignore[misc]  # of this instance: classes are the users'
        self.blocks = tuple(tuple(NET + name for name in block) for block in blocks)  # type: ignore[misc]

    def features(self, x: Tensor) -> Tensor:
        """The input of the head for x."""
        seen: list[Tensor] = []
        head = self.get_submodule(self.head)
        hook = head.register_forward_pre_hook(lambda _, given, named: seen.append((*given, *named.values())[0]), with_kwargs=True)
        try:
            self.net(x)
        finally:
            hook.remove()
        return seen[0]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits


def build(code: Plugin, shape: tuple[int, ...], classes: int, vocabulary: int | None) -> Own:
    """The model for samples of a shape, on the default device, which may be "meta".

    Raises UserError for a model that the engine could not train correctly.
    """
    sizes = {"input_shape": shape, "classes": classes, "vocabulary": vocabulary}
    about = (code.sha256, code.path, code.name, *sizes.values())
    if about not in _checked:
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            _checked[about] = _works_channels_last(_check(code, sizes), inputs(shape, vocabulary))
    if torch.get_default_device().type != "meta":
        model = _constructed(code, sizes)
    else:  # a constructor may read values, such as torch.linspace(0, 1, depth), which "meta" does not have
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            model = _without_data(_constructed(code, sizes))
    model.channels_last = _checked[about]
    return model


def inputs(shape: tuple[int, ...], vocabulary: int | None, count: int = BATCH) -> Tensor:
    """Random samples [count, *shape]: numbers, or tokens below `vocabulary`."""
    draw = torch.Generator().manual_seed(SEED)
    if vocabulary is not None:
        return torch.randint(vocabulary, (count, *shape), generator=draw, device="cpu")
    return torch.randn((count, *shape), generator=draw, device="cpu")


# -- construction -------------------------------------------------------------------------------------------------------


def _constructed(code: Plugin, sizes: Sizes) -> Own:
    arguments = _arguments(code, sizes)
    try:
        net = code.value(**arguments)
        if isinstance(net, nn.Module):
            _materialise(net, sizes)
    except UserError:
        raise
    except Exception as error:
        data = f"samples {_by(sizes['input_shape'])} of {sizes['classes']} classes"
        raise code.error(f"cannot be made for {data}{code.where(error)}: {in_a_line(error)}", TRACEBACK) from error
    if not isinstance(net, nn.Module):
        raise code.error(f"gives no torch.nn.Module, but {net!r:.50}", "Return the module.")
    model = Own(net, _head(code, net), _blocks(code, net))
    model.classes = sizes["classes"]
    return model


def _without_data(model: Own) -> Own:
    """A copy on "meta". `Module.to` would split shared parameters and skip plain tensors."""
    plain = (value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor))
    kept: dict[int, Any] = {id(one): one.to("meta") for one in (*model.buffers(), *plain)}
    kept |= {id(one): nn.Parameter(one.detach().to("meta")) for one in model.parameters()}
    return copy.deepcopy(model, kept)


def _arguments(code: Plugin, sizes: Sizes) -> Sizes:
    """The sizes that the class or function asks for by name."""
    parameters = inspect.signature(code.value).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for one in named:
        if sizes.get(one.name) is None and one.default is one.empty:
            raise code.error(
                f"asks for '{one.name}', which these data do not have",
                "It may ask for input_shape, classes and, for texts, vocabulary; give anything else a default.",
            )
    return {one.name: sizes[one.name] for one in named if sizes.get(one.name) is not None}


def _materialise(net: nn.Module, sizes: Sizes) -> None:
    """Lazy layers learn their sizes from a first batch."""
    if any(isinstance(one, UninitializedParameter) for one in net.parameters()):
        place = next(net.parameters()).device
        with torch.no_grad():
            net.eval()(inputs(sizes["input_shape"], sizes["vocabulary"]).to(place))
        net.train()


# -- head and blocks ----------------------------------------------------------------------------------------------------


def _head(code: Plugin, net: nn.Module) -> str:
    """The name of the head: as the model says, else its last linear layer."""
    named: object = getattr(net, "head", None)
    if isinstance(named, nn.Module):
        return "head"
    if isinstance(named, str):
        if not named or named not in dict(net.named_modules()):
            raise code.error(f'says head = "{named}", but has no such module', f"Valid: {_children(net)}.")
        return named
    linear: list[str] = [name for name, module in net.named_modules() if name and isinstance(module, nn.Linear)]
    if not linear:
        raise code.error("contains no linear layer that could be its head", 'Name what gives the logits: head = "classifier".')
    return linear[-1]


def _children(net: nn.Module) -> str:
    return ", ".join(name for name, child in net.named_children() if any(True for _ in child.parameters()))


def _blocks(code: Plugin, net: nn.Module) -> list[tuple[str, ...]]:
    """The names of each block's children, top first: as the model says, else one block for every child with parameters."""
    names = [name for name, _ in net.named_parameters()]
    listed = getattr(net, "blocks", None)
    if isinstance(listed, (list, tuple)) and all(isinstance(part, (str, list, tuple)) for part in listed):
        blocks = [(part,) if isinstance(part, str) else tuple(part) for part in listed]
    else:
        own = tuple(name for name in names if "." not in name)
        blocks = [(child,) for child, _ in net.named_children() if any(name.startswith(f"{child}.") for name in names)]
        blocks = [(*own, *blocks[0]), *blocks[1:]] if own and blocks else blocks
    of_parameters = [[block for block in blocks if f"{name}.".startswith(tuple(f"{part}." for part in block))] for name in names]
    if any(len(found) != 1 for found in of_parameters) or any([block] not in of_parameters for block in blocks):
        raise code.error("has blocks that do not hold every parameter once", f"They are made of: {_children(net)}.")
    ordered = [block for (block,), _ in groupby(reversed(of_parameters))]
    for block in ordered:
        if ordered.count(block) > 1:
            raise code.error(
                f"does not have the parameters of its block {', '.join(block)} side by side",
                "Assign the layers of a block one after another in __init__.",
            )
    return ordered


# -- what a model must keep ---------------------------------------------------------------------------------------------


def _check(code: Plugin, sizes: Sizes) -> Own:
    """The model, tried. Raises UserError if methods could not train it, or not in the same way on both executors."""
    torch.manual_seed(SEED)
    model = _constructed(code, sizes)
    torch.manual_seed(SEED)
    _check_parameters(code, model, _constructed(code, sizes))
    try:
        model = copy.deepcopy(model)  # as executors do
    except RuntimeError as error:
        raise code.error(
            f"cannot be copied: {str(error).partition('.')[0]}",
            "If it uses torch.nn.utils.weight_norm, use torch.nn.utils.parametrizations.weight_norm instead.",
        ) from None
    _check_tensors(code, model, _constructed(code, sizes))
    x = inputs(sizes["input_shape"], sizes["vocabulary"])
    before = _generators()
    buffers = [buffer.clone() for buffer in model.buffers()]
    logits, of_head = _tried(code, model, x)
    if _generators() != before:
        layers = [plain_name(name) for name, layer in model.named_modules() if isinstance(layer, _DropoutNd) and layer.p]
        raise code.error(
            f"draws random numbers in training{f' ({_some(layers)})' if layers else ''}: they would "
            "not come from a client's stream, and differ between executors",
            "Leave dropout and noise out, or set their rate to 0.",
        )
    _check_logits(code, model, logits, sizes["classes"], of_head)
    named = dict(model.named_parameters())
    labels = torch.zeros(len(x), dtype=torch.int64)
    gradients = torch.autograd.grad(F.cross_entropy(logits, labels), list(named.values()), allow_unused=True)
    if unused := [plain_name(name) for name, gradient in zip(named, gradients, strict=True) if gradient is None]:
        raise code.error(f"does not use its parameters {_some(unused)}", _UNUSED)
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(value)
    if not torch.allclose(_tried(code, model, x)[0], logits):
        raise code.error(
            "gives other logits when it sees the same samples again: it keeps state outside its parameters "
            "and buffers, which all clients would share",
            "Make it a buffer: self.register_buffer(...).",
        )
    return model


def _works_channels_last(model: Own, x: Tensor) -> bool:
    """Whether `forward` and its gradients work in the format of the loop executor on a CPU; x.view(...) may not."""
    kernels = [parameter for parameter in model.parameters() if parameter.dim() == 4]
    try:
        for kernel in kernels:
            kernel.data = kernel.contiguous(memory_format=torch.channels_last)
        x = torch.empty(x.shape, dtype=x.dtype, memory_format=torch.channels_last).copy_(x) if kernels else x
        model.train()(x).sum().backward()
    except RuntimeError:
        return False
    return True


def _tried(code: Plugin, model: Own, x: Tensor) -> tuple[Any, list[Any]]:
    """The model's output in training mode, and the output of each call of its head."""
    of_head: list[Any] = []
    hook = model.get_submodule(model.head).register_forward_hook(lambda module, _, out: of_head.append(out))
    try:
        with torch.enable_grad():
            return model.train()(x), of_head
    except Exception as error:
        reason = f"does not work on samples {_by(x.shape[1:])}{code.where(error)}: {in_a_line(error)}"
        raise code.error(reason, f"Its forward(x) is given samples with the batch in front. {TRACEBACK}") from error
    finally:
        hook.remove()


def _generators() -> tuple[Any, ...]:
    """The states of the global random generators."""
    state: Any = np.random.get_state()
    return torch.get_rng_state().tolist(), state[1].tolist(), state[2], random.getstate()


def _check_parameters(code: Plugin, model: Own, again: Own) -> None:
    named = dict(model.named_parameters())
    if frozen := [plain_name(name) for name, parameter in named.items() if not parameter.requires_grad]:
        raise code.error(f"has frozen parameters: {_some(frozen)}", "What is not trained is a buffer: register_buffer.")
    for name, one, other in zip(named, named.values(), again.parameters(), strict=True):
        if not torch.equal(one, other):
            raise code.error(
                f"begins differently each time from the same seed, with {plain_name(name)}",
                "Draw initial values by torch alone: its seed is that of the run.",
            )
    head = [f"{model.head}.{name}" for name, _ in model.get_submodule(model.head).named_parameters()]
    if not head or list(named)[-len(head) :] != head:
        raise code.error(
            f"does not have the parameters of its head {plain_name(model.head)} as its last ones, and for itself",
            f'Assign it last in __init__, or name another one: head = "...". In order: {_children(model.net)}.',
        )


def _check_tensors(code: Plugin, model: Own, other: Own) -> None:
    """other: of other random numbers, as in a pack, whose runs differ in the seed and train with the module of the first."""
    for (place, one), another in zip(model.named_modules(), other.modules(), strict=True):
        for name, value in vars(one).items():
            if isinstance(value, Tensor) and not torch.equal(value, vars(another)[name]):
                raise code.error(
                    f"draws {plain_name(f'{place}.{name}')} at random, but keeps it in no buffer",
                    "Make it a buffer: self.register_buffer(...).",
                )


def _check_logits(code: Plugin, model: Own, logits: Any, classes: int, of_head: Sequence[Any]) -> None:
    """of_head: the outputs of the head."""
    if not isinstance(logits, Tensor) or logits.shape != (BATCH, classes):
        result = _by(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise code.error(f"returns {result} for {BATCH} samples, not {BATCH} x {classes}", _LOGITS)
    if not bool(logits.isfinite().all()):
        raise code.error("returns values that are not finite, before any training", _LOGITS)
    if len(of_head) != 1 or not isinstance(of_head[0], Tensor) or not torch.equal(of_head[0], logits):
        raise code.error(
            f"does not return what its head {plain_name(model.head)} gives",
            'Return that as it is, without softmax or log_softmax, which are part of the loss; or name its head: head = "...".',
        )


def plain_name(name: str) -> str:
    """The name within the user's module."""
    return name.removeprefix(NET)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
