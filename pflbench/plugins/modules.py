"""Builds a user's model, checks it once, and wraps it as a `Backbone` for the engine."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Sequence
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
GIVEN = ("input_shape", "classes", "vocabulary")
_LOGITS = "Its forward(x) takes samples [batch, ...] and returns logits [batch, classes], without softmax."

_checked: set[tuple[Any, ...]] = set()


class Own(Backbone):
    """A user's module as `net`, with its head and blocks found."""

    def __init__(self, net: nn.Module, head: str, blocks: Sequence[Sequence[str]]) -> None:
        super().__init__()
        self.net = net
        self.head = NET + head  # type: ignore[misc]  # of this instance: classes are the users'
        self.blocks = tuple(tuple(NET + name for name in block) for block in blocks)  # type: ignore[misc]

    def features(self, x: Tensor) -> Tensor:
        """The input of the head for x."""
        seen: list[Tensor] = []

        def see(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            seen.append((*given, *named.values())[0])

        hook = self.get_submodule(self.head).register_forward_pre_hook(see, with_kwargs=True)
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
    about = (code.sha256, code.path, code.name, shape, classes, vocabulary)
    if about not in _checked:
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            _check(code, shape, classes, vocabulary)
        _checked.add(about)
    if torch.get_default_device().type != "meta":
        return _made(code, shape, classes, vocabulary)
    # A constructor may read values, such as torch.linspace(0, 1, depth), which "meta" does not have.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        return _without_data(_made(code, shape, classes, vocabulary))


def inputs(shape: tuple[int, ...], vocabulary: int | None, count: int = BATCH) -> Tensor:
    """Random samples [count, *shape]: numbers, or tokens below `vocabulary`."""
    draw = torch.Generator().manual_seed(SEED)
    if vocabulary is not None:
        return torch.randint(vocabulary, (count, *shape), generator=draw, device="cpu")
    return torch.randn((count, *shape), generator=draw, device="cpu")


# -- making -------------------------------------------------------------------------------------------------------------


def _made(code: Plugin, shape: tuple[int, ...], classes: int, vocabulary: int | None) -> Own:
    given = _given(code, {"input_shape": shape, "classes": classes, "vocabulary": vocabulary})
    try:
        net = code.value(**given)
        if isinstance(net, nn.Module):
            _materialised(net, shape, vocabulary)
    except UserError:
        raise
    except Exception as error:
        text = f"{code.who} cannot be made for samples {_by(shape)} of {classes} classes{code.where(error)}: {in_a_line(error)}."
        raise UserError(text, TRACEBACK) from error
    if not isinstance(net, nn.Module):
        raise UserError(f"{code.who} gives no torch.nn.Module, but {net!r:.50}.", "Return the module.")
    head = _head(code, net)
    return Own(net, head, _blocks(code, net, head))


def _without_data(model: Own) -> Own:
    """A copy on "meta". `Module.to` would split shared parameters and skip plain tensors."""
    plain = (value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor))
    kept: dict[int, Any] = {id(one): one.to("meta") for one in (*model.buffers(), *plain)}
    kept |= {id(one): nn.Parameter(one.detach().to("meta")) for one in model.parameters()}
    return copy.deepcopy(model, kept)


def _given(code: Plugin, offered: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the class or function asks for by name."""
    parameters = inspect.signature(code.value).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for one in named:
        if one.name not in offered and one.default is one.empty:
            raise UserError(
                f"{code.who} asks for '{one.name}', which nobody knows.",
                f"It may ask for {', '.join(GIVEN[:-1])} and, for texts, {GIVEN[-1]}; give anything else a default.",
            )
    wanted = {one.name for one in named if one.name in offered}
    if "vocabulary" in wanted and offered["vocabulary"] is None:
        one = next(one for one in named if one.name == "vocabulary")
        if one.default is one.empty:
            raise UserError(f"{code.who} needs texts: it asks for their vocabulary.", "Choose a dataset of texts.")
        wanted.remove("vocabulary")
    return {name: offered[name] for name in wanted}


def _materialised(net: nn.Module, shape: tuple[int, ...], vocabulary: int | None) -> None:
    """Lazy layers learn their sizes from a first batch."""
    if not any(isinstance(one, UninitializedParameter) for one in net.parameters()):
        return
    place = next(net.parameters()).device
    with torch.no_grad():
        net.eval()(inputs(shape, vocabulary).to(place))
    net.train()


# -- head and blocks ----------------------------------------------------------------------------------------------------


def _head(code: Plugin, net: nn.Module) -> str:
    """The name of the head: as the model says, else its last linear layer."""
    said: object = getattr(net, "head", None)
    if isinstance(said, nn.Module):
        return "head"
    if isinstance(said, str):
        if said not in dict(net.named_modules()) or not said:
            raise UserError(f'{code.who} says head = "{said}", but has no such module.', f"Valid: {_children(net)}.")
        return said
    linear: list[str] = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise UserError(
            f"{code.who} has no linear layer that could be its head.", 'Name what gives the logits: head = "classifier".'
        )
    if linear[-1] == "":
        raise UserError(
            f"{code.who} is a linear layer itself.", "Put it into a module, for example nn.Sequential(nn.Flatten(), ...)."
        )
    return linear[-1]


def _children(net: nn.Module) -> str:
    return ", ".join(name for name, child in net.named_children() if any(True for _ in child.parameters()))


def _blocks(code: Plugin, net: nn.Module, head: str) -> list[tuple[str, ...]]:
    """The names of each block's children, top first: as the model says, else one block for every child with parameters."""
    places = {name: i for i, (name, _) in enumerate(net.named_parameters())}
    said = getattr(net, "blocks", None)
    if isinstance(said, (list, tuple)) and all(isinstance(part, (str, list, tuple)) for part in said):
        given = [(part,) if isinstance(part, str) else tuple(part) for part in said]
    else:
        own = tuple(name for name in places if "." not in name)
        given = [(name,) for name, child in net.named_children() if any(place.startswith(f"{name}.") for place in places)]
        given = [(*own, *given[0]), *given[1:]] if own and given else given
    held: list[tuple[list[int], tuple[str, ...]]] = []
    for block in given:
        inside = [i for name, i in places.items() if any(name == part or name.startswith(f"{part}.") for part in block)]
        if not inside:
            raise UserError(f"{code.who} has a block without parameters: {', '.join(block)}.", f"Valid: {_children(net)}.")
        held.append((sorted(inside), block))
    held.sort(reverse=True)
    if sorted(i for inside, _ in held for i in inside) != list(range(len(places))):
        raise UserError(f"{code.who}: its blocks do not hold every parameter once.", f"They are made of: {_children(net)}.")
    for inside, block in held:
        if inside != list(range(inside[0], inside[-1] + 1)):
            raise UserError(
                f"{code.who}: the parameters of its block {', '.join(block)} do not lie side by side.",
                "Assign the layers of a block one after another in __init__.",
            )
    return [block for _, block in held]


# -- what a model must keep ---------------------------------------------------------------------------------------------


def _check(code: Plugin, shape: tuple[int, ...], classes: int, vocabulary: int | None) -> None:
    """Raises UserError for a model that methods could not train, or not in the same way on both executors."""
    torch.manual_seed(SEED)
    model = _made(code, shape, classes, vocabulary)
    torch.manual_seed(SEED)
    again = _made(code, shape, classes, vocabulary)
    _check_parameters(code, model, again)
    x = inputs(shape, vocabulary)
    before = _generators()
    buffers = [buffer.clone() for buffer in model.buffers()]
    logits, given = _tried(code, model, x, shape)
    if _generators() != before:
        layers = [plain_name(name) for name, layer in model.named_modules() if isinstance(layer, _DropoutNd) and layer.p]
        raise UserError(
            f"{code.who} draws random numbers in training{f' ({_some(layers)})' if layers else ''}: they would "
            "not come from a client's stream, and differ between executors.",
            "Leave dropout and noise out, or set their rate to 0.",
        )
    _check_logits(code, model, logits, classes, given)
    named = dict(model.named_parameters())
    labels = torch.zeros(len(x), dtype=torch.int64)
    gradients = torch.autograd.grad(F.cross_entropy(logits, labels), list(named.values()), allow_unused=True)
    unused = [plain_name(name) for name, gradient in zip(named, gradients, strict=True) if gradient is None]
    if unused:
        raise UserError(f"{code.who} does not use its parameters {_some(unused)}.", "Use them in forward, or leave them out.")
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(value)
    if not torch.allclose(_tried(code, model, x, shape)[0], logits):
        raise UserError(
            f"{code.who} gives other logits when it sees the same samples again: it keeps state outside its parameters "
            "and buffers, which all clients would share.",
            "Make it a buffer: self.register_buffer(...).",
        )


def _tried(code: Plugin, model: Own, x: Tensor, shape: tuple[int, ...]) -> tuple[Any, list[Any]]:
    """The model's output in training mode, and the output of each call of its head."""
    given: list[Any] = []
    hook = model.get_submodule(model.head).register_forward_hook(lambda module, _, out: given.append(out))
    try:
        with torch.enable_grad():
            return model.train()(x), given
    except Exception as error:
        raise UserError(
            f"{code.who} does not work on samples {_by(shape)}{code.where(error)}: {in_a_line(error)}.",
            f"Its forward(x) is given samples [batch, {', '.join(map(str, shape))}]. {TRACEBACK}",
        ) from error
    finally:
        hook.remove()


def _generators() -> tuple[Any, ...]:
    """The states of the global random generators."""
    state: Any = np.random.get_state()
    return torch.get_rng_state().tolist(), state[1].tolist(), state[2], random.getstate()


def _check_parameters(code: Plugin, model: Own, again: Own) -> None:
    named = dict(model.named_parameters())
    frozen = [plain_name(name) for name, parameter in named.items() if not parameter.requires_grad]
    if frozen:
        raise UserError(
            f"{code.who} has frozen parameters: {_some(frozen)}.", "What is not trained is a buffer: register_buffer."
        )
    for name, one, other in zip(named, named.values(), again.parameters(), strict=True):
        if not one.is_floating_point():
            raise UserError(f"{code.who}: the parameter {plain_name(name)} is {one.dtype}.", "Floating point is what is trained.")
        if not torch.equal(one, other):
            raise UserError(
                f"{code.who} begins differently each time from the same seed, with {plain_name(name)}.",
                "Draw initial values by torch alone: its seed is that of the run.",
            )
    head = [name for name in named if name.startswith(f"{model.head}.")]
    if list(named)[-len(head) :] != head or not head:
        raise UserError(
            f"{code.who}: its head {plain_name(model.head)} is not what comes last in it.",
            f'Assign it last in __init__, or name another one: head = "...". In order: {_children(model.net)}.',
        )
    if len(head) != len(list(model.get_submodule(model.head).parameters())):
        raise UserError(
            f"{code.who}: its head {plain_name(model.head)} shares parameters with another layer.", "Give it its own."
        )


def _check_logits(code: Plugin, model: Own, logits: Any, classes: int, given: Sequence[Any]) -> None:
    """given: the outputs of the head."""
    if not isinstance(logits, Tensor):
        raise UserError(f"{code.who} returns a {type(logits).__name__}, no tensor.", _LOGITS)
    if logits.shape != (BATCH, classes):
        found, wanted = _by(tuple(logits.shape)), _by((BATCH, classes))
        raise UserError(f"{code.who} returns {found} numbers for {BATCH} samples, not {wanted}.", _LOGITS)
    if not bool(logits.isfinite().all()):
        raise UserError(f"{code.who} returns values that are not finite, before any training.", _LOGITS)
    if len(given) != 1 or not isinstance(given[0], Tensor) or not torch.equal(given[0], logits):
        raise UserError(
            f"{code.who}: what it returns is not what its head {plain_name(model.head)} gives.",
            'Return that as it is, without softmax or log_softmax, which are part of the loss; or name its head: head = "...".',
        )


def plain_name(name: str) -> str:
    """The name within the user's module."""
    return name.removeprefix(NET)


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
