"""`plot distribution`: who holds what, as in Figures 6 to 9 of the FedALA paper: clients across, classes up, a
circle's area is
the number of samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from pflbench.errors import NothingYet, UserError
from pflbench.report import labels, style
from pflbench.report.looks import COLOURS
from pflbench.store import read
from pflbench.store.read import PartitionInfo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The largest circle of a panel, in widths of a square as large as the room for one client and one class. Larger ones hide
# their neighbours.
DIAMETER = 1.1


def plot(engine: Engine, *, datasets: Iterable[str] = (), partitions: Iterable[str] = ()) -> style.Drawing:
    """A panel per partition: those of the given datasets, those given by number, hash or label, else the first four.

    Train and test samples are counted together, as in the paper. Raises UserError if there are no such partitions.
    """
    datasets, partitions = tuple(datasets), tuple(partitions)
    chosen = choose(engine, datasets, partitions)
    return drawing(chosen, style.PANELS_CHOSEN if datasets or partitions else style.PANELS_UNASKED)


def drawing(chosen: Sequence[PartitionInfo], most: int = style.PANELS_CHOSEN) -> style.Drawing:
    """A panel per partition, of at most so many: they need not be in a database."""
    notes: tuple[str, ...] = ()
    if len(chosen) > most:
        notes = (f"Drawn: the first {most} of {len(chosen)} partitions. Choose with --dataset and --partition.",)
        chosen = chosen[:most]
    with style.context():
        return style.Drawing(_draw(chosen), caption(chosen), notes)


def choose(engine: Engine, datasets: Sequence[str], partitions: Sequence[str]) -> list[PartitionInfo]:
    """The partitions meant by these filters, all for none. Raises UserError if there are no such partitions."""
    stored = read.partitions(engine)
    if not stored:
        raise NothingYet(
            "There are no partitions in this database yet.",
            "A run stores its partition: pflbench run -m fedavg -d digits",
        )
    if datasets:
        names = {p.dataset: labels.label_title(p.dataset) for p in stored}
        wanted = [d.casefold() for d in datasets]
        stored = [p for p in stored if p.dataset.casefold() in wanted or names[p.dataset].casefold() in wanted]
        if not stored:
            raise UserError(
                f"No partition of {', '.join(datasets)} in this database.",
                f"There are partitions of: {', '.join(sorted(names))}.",
            )
    if not partitions:
        return stored
    found: dict[int, PartitionInfo] = {}
    for text in partitions:
        labelled = [p for p in stored if p.label.casefold() == text.casefold()]
        found |= {p.id: p for p in labelled or [read.partition(engine, text)]}
    return list(found.values())


def _draw(chosen: Sequence[PartitionInfo]) -> Figure:
    columns = min(len(chosen), 2)
    width = style.COLUMN if columns == 1 else style.PAGE
    height = 1.9 if max(len(p.classes) for p in chosen) <= 30 else 3.2
    figure, axes = style.grid(len(chosen), columns, width, height, titles=2, below=0)
    for k, (ax, partition) in enumerate(zip(axes, chosen, strict=True)):
        _prepare(ax, partition)
        _circles(ax, partition)
        ax.set_xlabel("Client" if k + columns >= len(chosen) else "")
        ax.set_ylabel("Class" if k % columns == 0 else "")
    return figure


def _prepare(ax: Axes, partition: PartitionInfo) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = partition.train + partition.test
    clients, classes = counts.shape
    for limits, places in ((ax.set_xlim, clients), (ax.set_ylim, classes)):
        beside = max(0.8, 0.03 * places)
        limits(-beside, places - 1 + beside)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=2))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=2))
    title = f"{labels.label_title(partition.dataset)}, {partition.label}, {clients} clients"
    ax.set_title(f"{title}\nlargest circle: {counts.max():,} samples")


def _circles(ax: Axes, partition: PartitionInfo) -> None:
    counts = partition.train + partition.test
    client, label = counts.nonzero()
    box, (left, right), (low, high) = ax.get_window_extent(), ax.get_xlim(), ax.get_ylim()
    # In square points, which is what scatter takes: the room there is for one client and one class.
    room = (72 / ax.figure.dpi) ** 2 * box.width / (right - left) * box.height / (high - low)
    area = DIAMETER**2 * room * counts[client, label] / counts.max()
    ax.scatter(client, label, s=area, color=COLOURS[0], alpha=0.75, linewidths=0)


def caption(chosen: Sequence[PartitionInfo]) -> str:
    named = "; ".join(f"{labels.label_title(p.dataset)} {p.label} ({p.hash[:8]})" for p in chosen)
    missing = "".join(
        f" {p.left_out:,} samples of {labels.label_title(p.dataset)} {p.label} are left out." for p in chosen if p.left_out
    )
    return f"Samples per client and class: the area of a circle is the number of training and test samples. {named}.{missing}"
