"""What a captured step asks of a GPU: its operations, the bytes they read and write, and the least time that takes.

    python benchmarks/operations.py --data-dir DATA [-d mnist] [--model cnn] [-m fedavg -m fedala ...] [--convolution unfold]

It runs on a CPU, before there is a GPU: steps are recorded as the contract suite records them (pflbench/contract/recorded.py),
two rounds of each method with 20 clients of equally many samples and batches of 10. A line is one kind of step of one method, as
it would be captured. An operation takes the longest of a launch, its bytes and its FLOPs at the rates given, by default of an
H200's data sheet (50 of its 67 TFLOP/s, and 2.2 us for a kernel of a graph, which is an assumption). Operations that only change
how a tensor is looked at cost nothing. cuDNN's kernels are not known here: a convolution counts what it reads, writes and
multiplies.

What differs between two versions of the code is worth more than the number itself. --list shows the longest operations.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import conv_flop_count, flop_registry

from pflbench import methods
from pflbench.contract.recorded import Recorded
from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.batched.convolutions import CONVOLUTIONS
from pflbench.engine.batched.program import Call
from pflbench.errors import UserError
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.run.prepared import prepare

SCATTERS = {"index_put_", "_index_put_impl_"}
VIEWS = {
    *("view", "_unsafe_view", "_reshape_alias", "as_strided", "expand", "unsqueeze", "squeeze", "slice", "select", "split"),
    *("split_with_sizes", "unbind", "unflatten", "t", "transpose", "permute", "movedim", "detach", "alias"),
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
}


@dataclass(frozen=True)
class Rates:
    launch: float  # seconds
    bandwidth: float  # bytes per second
    arithmetic: float  # FLOP per second


@dataclass(frozen=True)
class Operation:
    name: str
    bytes: int
    flops: int
    shapes: tuple[tuple[int, ...], ...]

    def seconds(self, rates: Rates) -> float:
        return max(rates.launch, self.bytes / rates.bandwidth, self.flops / rates.arithmetic)


class Noted(Recorded):
    """Also keeps what it has recorded."""

    def __init__(self) -> None:
        self.steps: list[list[Operation]] = []

    def __call__(self, step: Call) -> Call:
        call = super().__call__(step)
        recorded = call.__self__.operations  # type: ignore[attr-defined]
        self.steps.append([operation(*one) for one in recorded if one[0].overloadpacket.__name__ not in VIEWS])
        return call


def operation(func: Any, args: Any, kwargs: Any, result: Any) -> Operation:
    name = func.overloadpacket.__name__
    read, written = _tensors((args, kwargs)), _tensors(result)
    if name in ("index", "gather"):  # as many as it writes, of what may be a whole data set
        read = written
    size = sum(t.numel() * t.element_size() for t in (*read, *written))
    if name in SCATTERS:  # of the table the rows of the values, read and written; all of it, there and back, where it lies apart
        table, values = args[0], args[2]
        size += 2 * values.nbytes - 2 * table.nbytes + (0 if table.is_contiguous() else 4 * table.nbytes)
    return Operation(name, size, _flops(func, args, kwargs, result), tuple(tuple(t.shape) for t in _tensors((args, kwargs))))


def _tensors(tree: Any) -> list[Tensor]:
    return list({id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}.values())


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    if func.overloadpacket is torch.ops.aten.convolution_backward:  # PyTorch's formula knows no groups
        gradient, x, weight, *_, wanted = args
        return conv_flop_count(x.shape, weight.shape, gradient.shape) * sum(wanted[:2])  # type: ignore[no-any-return]
    formula = flop_registry.get(func.overloadpacket)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))


def steps(method: str, options: argparse.Namespace) -> list[list[Operation]]:
    """Of each kind of step that two rounds capture."""
    request = RunOptions((method,), (options.dataset,), options.data_dir, model=options.model, partition="iid")
    (spec,) = plan(request)
    setting = load_federation_data(spec, options.data_dir).cut(options.share, least=spec.train.batch_size)
    fed, noted = prepare(spec, setting, find_device("cpu"), Execution(engine="batched")).federation(), Noted()
    fed.executor.close()
    fed.executor = BatchedExecutor(  # type: ignore[attr-defined]
        fed.flat, fed.executor.samples, capture=noted, convolution=options.convolution
    )
    run = methods.make(spec.method)
    state = run.init(fed)
    for t in (1, 2):
        now = fed.at(t)
        state = run.update(now, run.receive(now, state, now.cohort(t)), now.cohort(t))
    return noted.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("PFLBENCH_DATA", "data")))
    parser.add_argument("-d", "--dataset", default="mnist")
    parser.add_argument("--model", default=None, help="default: the paper's for the dataset")
    parser.add_argument("-m", "--method", action="append", help="default: all")
    parser.add_argument("--share", type=float, default=0.02, help="of every client's samples: the step is the same")
    parser.add_argument("--convolution", choices=CONVOLUTIONS, default=CONVOLUTIONS[0], help="the way to convolve")
    parser.add_argument("--launch", type=float, default=2.2, help="microseconds for an operation, at least")
    parser.add_argument("--bandwidth", type=float, default=4.8, help="TB/s")
    parser.add_argument("--arithmetic", type=float, default=50, help="TFLOP/s")
    parser.add_argument("--list", type=int, default=0, metavar="N", help="also the N longest operations of each step")
    options = parser.parse_args()
    try:
        show(options)
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def show(options: argparse.Namespace) -> None:
    rates = Rates(options.launch * 1e-6, options.bandwidth * 1e12, options.arithmetic * 1e12)
    print(f"{'method':12} {'step':>4} {'operations':>10} {'MB':>8} {'us at least':>12}")
    for method in options.method or methods.names():
        for i, step in enumerate(steps(method, options)):
            took = sum(one.seconds(rates) for one in step)
            print(f"{method:12} {i:4} {len(step):10} {sum(one.bytes for one in step) / 1e6:8.0f} {took * 1e6:12.0f}", flush=True)
            for one in sorted(step, key=lambda one: -one.seconds(rates))[: options.list]:
                shapes = " ".join(str(list(shape)) for shape in one.shapes[:3])
                print(f"{'':29}{one.bytes / 1e6:8.1f} {one.seconds(rates) * 1e6:12.1f}  {one.name} {shapes}")


if __name__ == "__main__":
    main()
