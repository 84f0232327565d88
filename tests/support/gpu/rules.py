"""What CUDA refuses, what makes the host wait for the device, and what PyTorch's operations are in that respect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

# Their result is on the host, or has a size that only the numbers tell.
WAIT = {
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "argwhere", "bincount", "histc"),
        *("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive", "repeat_interleave"),
        *("linalg_cholesky_ex", "_linalg_eigh", "_linalg_svd", "linalg_eig", "linalg_lstsq", "multinomial"),
    )
}
COPY = {"aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize", "aten::_to_copy"}
INDEX = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
ALLOCATE = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"}

# PyTorch makes these by filling a tensor of no size, which has to grow: here they are made at once.
GROW = ("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "logspace", "range", "randperm")


class NotPermitted(RuntimeError):
    """What CUDA would answer with an error."""


def leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Of arguments or results: what lies in lists and tuples, too."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from leaves(value)
        else:
            yield value


def tensors(*values: Any) -> list[torch.Tensor]:
    return [value for value in leaves(values) if isinstance(value, torch.Tensor)]


def mapped(change: Callable[[Any], Any], values: Any) -> Any:
    """The same arrangement of lists, tuples and names with each leaf changed."""
    if isinstance(values, Mapping):
        return {name: mapped(change, value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)([mapped(change, value) for value in values])
    return change(values)


def written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operation writes to."""
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            found += tensors(given)
    return found


def allocates(func: Any) -> bool:
    """Whether it gives memory that nobody has written."""
    return func._schema.name in ALLOCATE


def poison(raw: torch.Tensor) -> None:
    """What is found in memory that was not written: NaN, or an integer that is no index of anything."""
    if not raw.numel():
        return
    if raw.is_floating_point() or raw.is_complex():
        raw.fill_(float("nan"))
    elif raw.dtype == torch.bool:
        raw.fill_(True)
    elif raw.dtype == torch.uint8:
        raw.fill_(171)
    else:
        raw.fill_(torch.iinfo(raw.dtype).min // 2 + 12345)


def by_mask(func: Any, args: Any) -> bool:
    """Whether an index is a mask: how much it chooses only the numbers tell."""
    masks = (torch.bool, torch.uint8)
    return func._schema.name in INDEX and any(isinstance(i, torch.Tensor) and i.dtype in masks for i in args[1])


def accepts_number(func: Any) -> bool:
    """Whether a tensor without dimensions on the host will do: as a number that is passed to the kernel."""
    read = ("aten::masked_fill", "aten::masked_fill_", "aten::index_fill_", "aten::lerp", "aten::lerp_")
    return torch.Tag.pointwise in func.tags or func._schema.name in read


def copies_number(func: Any) -> bool:
    """Whether it copies such a tensor to the device first."""
    return func._schema.name in ("aten::where", "aten::fill_", "aten::fill")


def compiled(func: Any, args: Any) -> bool:
    """Whether PyTorch 2.13 has Triton compile it, for which not every machine has a C compiler."""
    native = getattr(torch.backends, "python_native", None)
    if func._schema.name != "aten::bmm" or native is None or native.is_operation_disabled("bmm"):
        return False
    a, b = args
    return bool(a.shape[2] == 1 and a.numel() and b.numel() and not a.is_complex())


def compiled_at_first(func: Any) -> bool:
    """Whether PyTorch has it compiled by NVRTC when it is first used."""
    return func._schema.name == "aten::prod"


def sorted_first(func: Any, args: Any) -> bool:
    """Whether `isin` sorts, as it does where there is much to be found, and then waits to know how much differs."""
    return func._schema.name == "aten::isin" and args[1].numel() >= 10 * args[0].numel() ** 0.145


def random(func: Any) -> bool:
    """Whether it draws from the device's generator, whose numbers are not the CPU's."""
    return torch.Tag.nondeterministic_seeded in func.tags
