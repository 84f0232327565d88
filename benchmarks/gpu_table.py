"""What benchmarks/gpu.sh measured, beside what is asked for.

    python benchmarks/gpu_table.py gpu.db

Seconds are medians of whole rounds, evaluation included. A floor is that of the machine's own ceilings (pflbench/bench/floor.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from pflbench.bench.summary import Summary, summaries
from pflbench.errors import UserError
from pflbench.store import database as db
from pflbench.store import measurements
from pflbench.store.measurements import Measurement


@dataclass(frozen=True)
class Row:
    what: str
    value: float
    unit: str
    target: float
    least: bool = False  # the target is the least that will do, not the most

    @property
    def text(self) -> str:
        met = self.value >= self.target if self.least else self.value <= self.target
        sign = ">=" if self.least else "<="
        return f"| {self.what} | {self.value:.3g}{self.unit} | {sign} {self.target:g}{self.unit} | {'yes' if met else 'no'} |"


class Found:
    """The newest measurement of each name."""

    def __init__(self, url: str) -> None:
        self.engine = db.connect(db.to_url(url))

    def measurement(self, name: str) -> Measurement:
        return measurements.find(self.engine, name)

    def summary(self, name: str, method: str = "fedavg", engine: str = "batched") -> Summary:
        found = {(one.method, one.engine): one for one in summaries(self.measurement(name))}
        # Without a GPU the script asks for steps that are not captured.
        return found.get((method, engine)) or found[method, f"{engine}:none"]


def cifar10(of: Found) -> Iterator[Row]:
    one = of.summary("cifar10")
    yield Row("Cifar10, CNN, FedAvg: a round", one.median, " s", 0.15)
    yield Row("the same, against its floor", one.times_floor, " x", 4)
    yield Row("5 seeds packed, against one", of.summary("cifar10", engine="packed").median / one.median, " x", 2.5)


def loop(of: Found) -> Iterator[Row]:
    yield Row("Cifar10, CNN, FedAvg: faster than the loop executor", _faster(of, "cifar10-ways"), " x", 50, least=True)


def tiny(of: Found) -> Iterator[Row]:
    one = of.summary("tiny", "fedala")
    yield Row("Tiny-ImageNet, CNN, FedALA: a round in float32", one.median, " s", 1.5)
    yield Row("the same, against FedAvg", one.times_fedavg, " x", 1.4)


def tiny_tf32(of: Found) -> Iterator[Row]:
    yield Row("Tiny-ImageNet, CNN, FedALA: a round with TF32", of.summary("tiny-tf32", "fedala").median, " s", 0.8)


def resnet(of: Found) -> Iterator[Row]:
    yield Row("Tiny-ImageNet, ResNet-18, FedALA: a round in float32", of.summary("tiny-resnet18", "fedala").median, " s", 6)


def resnet_tf32(of: Found) -> Iterator[Row]:
    yield Row("Tiny-ImageNet, ResNet-18, FedALA: a round with TF32", of.summary("tiny-resnet18-tf32", "fedala").median, " s", 3)


def texts(of: Found) -> Iterator[Row]:
    yield Row("AG News, fastText, FedAvg: a round", of.summary("texts-whole").median, " s", 0.5)


def texts_loop(of: Found) -> Iterator[Row]:
    yield Row("AG News, fastText, FedAvg: faster than the loop executor", _faster(of, "texts"), " x", 30, least=True)


def clients(of: Found) -> Iterator[Row]:
    rounds = {count: of.summary(f"clients-{count}") for count in (20, 100, 1000)}
    for count in (100, 1000):
        yield Row(f"MNIST, CNN, {count} clients against 20", rounds[count].median / rounds[20].median, " x", 2)
    grown = rounds[1000].peak_memory / rounds[100].peak_memory
    yield Row("memory, 1,000 clients against 100", grown, " x", 10)


PARTS: tuple[Callable[[Found], Iterator[Row]], ...] = (
    cifar10, loop, tiny, tiny_tf32, resnet, resnet_tf32, texts, texts_loop, clients,
)  # fmt: skip


def _faster(of: Found, name: str) -> float:
    return of.summary(name, engine="loop").median / of.summary(name).median


def main() -> None:
    of = Found(sys.argv[1])
    print("| work | measured | asked for | met |\n| --- | ---: | ---: | --- |")
    missing = []
    for part in PARTS:
        try:
            for row in part(of):
                print(row.text)
        except (UserError, KeyError):
            missing.append(part.__name__)
    if missing:
        print(f"\nNot measured: {', '.join(missing)}.")
    with suppress(UserError):
        ways = summaries(of.measurement("cifar10-ways"))
        print("\nWays of a tenth of Cifar10:", ", ".join(f"{one.engine} {one.median:.3g} s" for one in ways))


if __name__ == "__main__":
    main()
