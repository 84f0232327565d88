"""Which table and figure of which paper is made by what here: the one source of `reproduce`'s names, list and help.

Numbers alone ("table4", "fig 4") are those of the FedALA paper. What draws a method and shows no result is in DRAWINGS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pflbench.errors import UserError, unknown
from pflbench.report.declared import PLOTS, TABLES, Kind

FEDALA, FEDAMP, ELASTIC, PFLLIB = "FedALA", "FedAMP", "Elastic Aggregation", "PFLlib"


@dataclass(frozen=True)
class Part:
    """A table or figure, or both of one name (kind None). printed: only this exhibit's part; empty: all of it."""

    kind: Kind | None
    name: str
    printed: str = ""

    @property
    def command_name(self) -> str:
        """What `reproduce` calls it: "plot:heterogeneity" where there is a table of that name, too."""
        return f"{self.kind}:{self.name}" if self.kind and self.name in TABLES and self.name in PLOTS else self.name


@dataclass(frozen=True)
class Exhibit:
    """A table or figure that a paper prints. number: "Table 4", empty where its source does not number it."""

    paper: str
    number: str
    shows: str
    parts: tuple[Part, ...]

    @property
    def title(self) -> str:
        return f"{self.paper}, {self.number}" if self.number else self.paper

    @property
    def command_name(self) -> str:
        """Its name for `reproduce`."""
        if self.paper == FEDALA:
            return self.number.lower().replace(" ", "")
        return self.parts[0].command_name

    @property
    def command(self) -> str:
        return f"pflbench reproduce {self.command_name}"


def _of(number: str, shows: str, *parts: tuple[Kind, str] | tuple[Kind, str, str], paper: str = FEDALA) -> Exhibit:
    return Exhibit(paper, number, shows, tuple(Part(*part) for part in parts))


EXHIBITS = (
    _of("Table 1", "FedALA by its hyperparameters s and p", ("table", "hyperparameters")),
    _of("Table 2", "accuracy, pathological and practical setting", ("table", "accuracy", "Table 2")),
    _of("Table 3", "time and communication", ("table", "overhead")),
    _of(
        "Table 4",
        "heterogeneity, scalability, ALA in other methods",
        ("table", "heterogeneity"),
        ("table", "scalability"),
        ("table", "applicability"),
    ),
    _of("Table 5", "blocks in ALA's range, by p", ("table", "range")),
    _of("Table 6", "accuracy and learned weights by ALA's range", ("table", "range")),
    _of("Table 7", "MNIST; half of the clients join", ("table", "accuracy", "Table 7"), ("table", "participation")),
    _of("Figure 3", "a client's loss over ALA's epochs", ("plot", "ala-convergence")),
    _of("Figure 4", "trajectory of a client's model", ("plot", "trajectory")),
    _of("Figure 5", "training loss, trained and initialised models", ("plot", "loss")),
    _of("Figure 6", "data of Tiny-ImageNet, three settings", ("plot", "distribution", "Figure 6")),
    _of("Figure 7", "data in the pathological setting", ("plot", "distribution", "Figure 7")),
    _of("Figure 8", "data in the practical setting", ("plot", "distribution", "Figure 8")),
    _of("Figure 9", "data of Cifar100, 50 and 100 clients", ("plot", "distribution", "Figure 9")),
    _of("", "attention recovers the groups of clients", ("plot", "attention"), paper=FEDAMP),
    _of("", "IID, pathological and grouped clients; Wilcoxon's test over them", ("table", "partitions"), paper=FEDAMP),
    _of("Table", "accuracy on a central test set", ("table", "elastic"), paper=ELASTIC),
    _of("Figure", "accuracy by partition, participation, local epochs", ("plot", "elastic"), paper=ELASTIC),
    _of("leaderboard", "accuracy of 20 methods, of which 18 are here", ("table", "leaderboard"), paper=PFLLIB),
)
DRAWINGS = (
    "FedALA: its Figures 1 and 2 draw the method.",
    "FedDeper: what is at hand of the paper has two drawings of the method, and no result.",
)
_NUMBERED = re.compile(r"(table|figure|fig)\.?\s*(\d+)", re.IGNORECASE)
_PREFIXED = re.compile(r"(table|plot|figure):(.+)", re.IGNORECASE)


def resolve(name: str, only: Kind | None = None) -> tuple[Part, ...]:
    """What a name stands for: "table4", "Fig. 4", "plot:heterogeneity", or "heterogeneity", which is the table and the figure.

    only: of this kind, whose own names come first. Raises UserError for what is not there, and for what is of the other kind.
    """
    own = {"table": TABLES, "plot": PLOTS}
    known = own[only] if only else [name for name, of in {**TABLES, **PLOTS}.items() if of.reproducible]
    if only and name in known:
        return (Part(only, name),)
    parts: tuple[Part, ...]
    if numbered := _NUMBERED.fullmatch(name.strip()):
        parts = _numbered("Table" if numbered[1].lower() == "table" else "Figure", int(numbered[2]))
    elif prefixed := _PREFIXED.fullmatch(name.strip()):
        kind: Kind = "table" if prefixed[1].lower() == "table" else "plot"
        if prefixed[2] not in own[kind]:
            raise unknown(kind, prefixed[2], own[kind])
        parts = (Part(kind, prefixed[2]),)
    elif name in known:
        parts = (Part(None, name),)
    else:
        raise unknown(only or "table or figure", name, known)
    if only and parts[0].kind != only:
        other, right = ("table", "table") if only == "plot" else ("figure", "plot")
        raise UserError(f"'{name}' is a {other}.", f"pflbench {right} '{name}'" if " " in name else f"pflbench {right} {name}")
    return parts


def _numbered(kind: str, number: int) -> tuple[Part, ...]:
    there = {one.number: one.parts for one in EXHIBITS if one.paper == FEDALA and one.number.startswith(kind)}
    if parts := there.get(f"{kind} {number}"):
        return parts
    raise UserError(f"The FedALA paper has no results in a {kind} {number}.", f"It has them in {', '.join(there)}.")


def names() -> tuple[str, ...]:
    """All names for `reproduce`, for completion."""
    both = [f"{kind}:{name}" for name in TABLES if name in PLOTS for kind in ("table", "plot")]
    tables = (name for name, table in TABLES.items() if table.reproducible)
    return tuple(dict.fromkeys((*(one.command_name for one in EXHIBITS), *tables, *PLOTS, *both)))


def sources(kind: Kind, name: str) -> str:
    """The exhibits of a table or figure in the papers, such as "FedALA, Table 4"; empty if there are none."""
    return "; ".join(one.title for one in EXHIBITS if any((part.kind, part.name) == (kind, name) for part in one.parts))


def plain() -> str:
    """The map as lines of text, each a paragraph: the help of `reproduce`."""
    return "\n\n".join(f"{one.title}: {one.shows}: {one.command_name}" for one in EXHIBITS)
