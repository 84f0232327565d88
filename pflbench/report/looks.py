"""What a method looks like: colour, marker and dashes, everywhere the same, and no two lines or points of a figure alike.

Colours are those of Okabe and Ito (Color Universal Design, 2008) without the yellow, which is too pale for a line on
paper. Dashes and markers tell methods apart where colours repeat, and in grey print. A method with ALA plugged in has
the colour and the marker of the method itself, hollow, and dashes of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any
from zlib import crc32

from pflbench.methods import METHODS

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
# How much of a marker is filled: the first two for a method, the others for it with ALA plugged in.
FILLS: tuple[dict[str, Any], ...] = (
    {"fillstyle": "full"},
    {"fillstyle": "left", "markerfacecoloralt": "white"},
    {"fillstyle": "full", "markerfacecolor": "white"},
    {"fillstyle": "bottom", "markerfacecoloralt": "white"},
)
HALVED = ("o", "s", "D")  # markers on which half a fill shows at print size
PLUGGED = 2  # the place in FILLS
# In widths of the line: on, off, ...
DASHES = (
    (),
    (4, 1.6),
    (6.4, 1.6, 1, 1.6),
    (1, 1.6),
    (6, 1.5, 1, 1.5, 1, 1.5),
    (9, 2),
    (9, 1.5, 3, 1.5),
    (3, 1.3, 1, 1.3),
    (2, 1),
    (4, 1.5, 4, 1.5, 1, 1.5),
)
# A row has one method for each colour. Methods that are often compared are in one row; those that have FedALA's colour are
# seldom compared with it.
_ROWS = (
    *("fedala", "fedavg", "ditto", "local", "fedprox", "fedrep", "pfedme"),
    *("elastic", "apple", "per-fedavg", "fedavg-c", "fedamp", "fedfomo", "fedphp"),
    *("feddeper", "fedbabu", "partialfed", "lg-fedavg", "fedavg-ft", "fedper", "fedprox-c"),
    "heurfedamp",
)
ORDER = tuple(dict.fromkeys((*_ROWS, *METHODS)))
_PAIRS = len(COLOURS) * len(MARKERS)  # all different, as 7 and 9 have no common factor
_FREE = _PAIRS - len(ORDER)
_SHADES = -(-len(ORDER) // len(COLOURS))  # listed methods to a colour


@dataclass(frozen=True)
class Look:
    """fill: the place in FILLS; dash: which of the patterns of `dashes`."""

    colour: str
    marker: str
    fill: int
    dash: int

    @property
    def line(self) -> dict[str, Any]:
        """Properties of a Matplotlib line."""
        pattern = dashes(self.dash)
        return {**self.point, "linestyle": (0, pattern) if pattern else "-"}

    @property
    def point(self) -> dict[str, Any]:
        """The look without a line."""
        return {"color": self.colour, "marker": self.marker, "linestyle": "", **FILLS[self.fill]}


OTHER = Look("#c0c0c0", "o", 0, 0)  # of methods that are not told apart


def dashes(number: int) -> tuple[float, ...]:
    """The dash pattern of a number, () for a solid line; all numbers differ."""
    return DASHES[number] if number < len(DASHES) else (2.0 + number, 1.5, 1, 1.5)


def of(method: str) -> Look:
    """The look of a method, the same in all figures."""
    return assign([(method, 0)])[method, 0]


def assign(rows: Iterable[tuple[str, int]]) -> Mapping[tuple[str, int], Look]:
    """The looks of the rows of one figure, each a method and its variant (0, 1, ... among the rows of the method).

    Listed methods have theirs always. Others have one by their name, and the next that is free where two names meet.
    Further variants keep the colour and, as far as there are such, the marker; their dashes are the first that are free.
    """
    rows = sorted(set(rows))
    slots = _slots({_base(method) for method, _ in rows})
    made = {(method, 0): _look(slots[_base(method)], "+ala" in method) for method, _ in rows}
    for method, variant in rows:
        if (method, variant) not in made:
            first = made[method, 0]
            beside = [look for look in made.values() if look.colour == first.colour]
            dash = next(k for k in count() if k not in {look.dash for look in beside})
            marked = {(look.marker, look.fill) for look in beside}
            marker, fill = next((m for m in _marks(first) if m not in marked), (first.marker, first.fill))
            made[method, variant] = replace(first, marker=marker, fill=fill, dash=dash)
    return made


def with_distinct_colours(looks: Sequence[Look]) -> list[Look]:
    """For figures that tell methods apart by colour alone: repeated colours are replaced by unused ones, while there are any."""
    free = [colour for colour in COLOURS if colour not in {look.colour for look in looks}]
    made: list[Look] = []
    for look in looks:
        taken = look.colour in {other.colour for other in made}
        made.append(replace(look, colour=free.pop(0)) if taken and free else look)
    return made


def _base(method: str) -> str:
    return method.partition("+ala")[0]


def _slots(names: Iterable[str]) -> dict[str, int]:
    """In alphabetical order, so that the order of rows does not matter."""
    made = {name: ORDER.index(name) for name in names if name in ORDER}
    for name in sorted(set(names) - set(made)):
        start = crc32(name.encode())
        around = (len(ORDER) + (start + k) % _FREE for k in range(_FREE))
        made[name] = next(slot for slot in chain(around, count(_PAIRS)) if slot not in made.values())
    return made


def _look(slot: int, plugged: bool) -> Look:
    shade = slot // len(COLOURS)
    # Listed methods have the patterns that tell most apart.
    dash = shade + _SHADES * plugged if shade < _SHADES else 2 * shade + plugged
    return Look(COLOURS[slot % len(COLOURS)], MARKERS[slot % len(MARKERS)], PLUGGED * plugged, dash)


def _marks(first: Look) -> Iterable[tuple[str, int]]:
    """The looks of variants: the other fill of the marker, then those of other markers, last what is hard to tell."""
    at = MARKERS.index(first.marker)
    markers = (*MARKERS[at:], *MARKERS[:at])
    return sorted(
        ((marker, first.fill + k) for marker in markers for k in (0, 1)),
        key=lambda one: one[1] > first.fill and one[0] not in HALVED,
    )
