"""No two methods look alike: neither the listed ones with and without ALA, nor unknown ones and variants in one figure."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from matplotlib.lines import Line2D
from sqlalchemy import Engine
from support.pages import pages
from support.report_database import add_run, spec

from pflbench import methods
from pflbench.report import looks, paper
from pflbench.report.figures import curves
from pflbench.report.selection import Filters

EVERY = [name + plus for name in methods.METHODS for plus in ("", "+ala")]


def drawn(line: Line2D) -> dict[str, Any]:
    """As Matplotlib has it. Its unscaled dashes are private, the scaled ones are those of this line's width."""
    marker = (line.get_marker(), line.get_fillstyle(), line.get_markerfacecolor())
    return {"colour": line.get_color(), "dashes": str(line._unscaled_dash_pattern), "marker": marker}  # type: ignore[attr-defined]


def colliding(number: int) -> list[str]:
    """Names that ask for the same look."""
    free = len(looks.COLOURS) * len(looks.MARKERS) - len(looks.ORDER)
    asked = crc32(b"mine") % free
    return [name for k in range(10_000) if crc32((name := f"mine-{k}").encode()) % free == asked][:number]


def test_in_a_figure_with_plug_ins_and_variants_all_lines_differ(engine: Engine) -> None:
    plugins = colliding(6)
    names = [*EVERY, *plugins, *(f"{name}+ala" for name in plugins[:2])]
    for name in names:
        add_run(engine, spec(name, hyperparameters={}), [0.1, 0.2])
    for k in range(12):
        add_run(engine, spec("fedala", hyperparameters={"p": k}), [0.1, 0.2])
        add_run(engine, spec("fedprox+ala", hyperparameters={"p": k}), [0.1, 0.2])
    lines = curves.plot(engine, Filters(methods=names)).figure.axes[0].lines
    assert len(lines) == len(names) + 24
    for one in ("dashes", "marker"):
        assert len({(drawn(line)["colour"], drawn(line)[one]) for line in lines}) == len(lines), one
    (page,) = pages("curves", engine)
    symbols = {(trace["line"]["color"], trace["marker"]["symbol"]) for trace in page.spec["data"]}
    assert len(symbols) == len(lines)
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in page.spec["data"]}) == len(lines)


def test_half_a_fill_is_first_on_the_markers_that_show_it() -> None:
    variants = looks.assign([("fedprox", k) for k in range(len(looks.MARKERS))])
    halved = [look.marker for look in variants.values() if look.fill % 2]
    assert halved
    assert {*halved} <= {*looks.HALVED}


def test_an_unknown_method_keeps_its_look_where_its_name_meets_no_other() -> None:
    alone, first, second = looks.of("a-new-method"), *colliding(2)
    among = looks.assign([(name, 0) for name in ("fedavg", "a-new-method", "fedala")])
    assert among["a-new-method", 0] == alone
    apart = looks.assign([(second, 0), (first, 0)])
    assert apart == looks.assign([(first, 0), (second, 0)])
    assert apart[first, 0] != apart[second, 0]


def test_with_ala_a_method_keeps_colour_and_marker() -> None:
    plain, plugged = looks.of("ditto"), looks.of("ditto+ala")
    assert (plain.colour, plain.marker) == (plugged.colour, plugged.marker)
    assert plugged.point["markerfacecolor"] == "white"


def test_methods_that_are_often_drawn_together_have_colours_of_their_own() -> None:
    common = ("local", "fedavg", "fedprox", "fedrep", "pfedme", "ditto", "fedala")
    assert len({looks.of(name).colour for name in common}) == len(common)


def test_fedala_s_colour_is_its_own_in_its_paper_s_tables() -> None:
    rivals = {*paper.seconds_per_iteration(), "fedbabu", "fedper", "fedrod", "fedavg-ft"} - {"fedala"}
    assert len(rivals) > 15
    assert looks.of("fedala").colour not in {looks.of(name).colour for name in rivals}


def test_where_only_colours_tell_methods_apart_no_two_share_one() -> None:
    """FedAvg, APPLE and FedBABU have one colour; the first of them keeps it, and so does who shares none."""
    given = [looks.of(name) for name in ("fedala", "fedavg", "apple", "fedbabu", "ditto")]
    made = [look.colour for look in looks.with_distinct_colours(given)]
    assert [made[place] for place in (0, 1, 4)] == [given[place].colour for place in (0, 1, 4)]
    assert len(set(made)) == len(given)
    assert len(looks.with_distinct_colours([looks.of(name) for name in EVERY])) == len(EVERY), "more methods than colours"
