"""`plot attention`, in print and on a page: clients in the order of their groups, weights in the colours of their sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from sqlalchemy import Engine
from support.observed import NAN, PATHOLOGICAL, XI, add, pathological
from support.pages import PAGES, contrast, only

from pflbench.errors import UserError
from pflbench.report.figures import attention
from pflbench.report.traces import GREY
from pflbench.store import partitions
from pflbench.store.partitions import PartitionRecord


def test_the_attention_matrix_is_drawn_in_the_order_of_the_groups(engine: Engine) -> None:
    add(engine, "fedamp", [{}, {"attention": XI}], partition=pathological(engine), scheme=PATHOLOGICAL)
    drawing = attention.plot(engine)
    ax = drawing.figure.axes[0]
    # Within a group the client that one class dominates more comes first: 0 (80 %) before 2 (60 %), 3 (90 %) before 1 (50 %).
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "2", "3", "1"]
    expected = np.array([[NAN, 0.3, 0.1, 0.1], [6, NAN, 2, 0], [0.1, 0, NAN, 0.7], [0, 0, 0, NAN]])
    np.testing.assert_allclose(np.ma.filled(ax.images[0].get_array(), NAN), expected, atol=1e-300)
    assert ax.images[0].get_clim() == (0.1, 6)
    assert ax.images[0].colorbar.extend == "min"
    own = (0.6 + 0.75 + 0.875) / 3  # client 1 attends to nobody
    # The weights' sums are 0.5, 0, 8 and 0.8. Clients 1 and 3 go together first, then 0 and 2: these are the groups.
    assert f"weight on others 0.65, on own group {100 * own:.0f} % (by chance 33 %), ARI 1.00" in drawing.caption
    assert " ".join(ax.get_title().split()) == "FedAMP: MNIST, Pathological(2), after round 1"
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0, 1", "2, 3"]
    assert ax.get_ylabel() == "Group: its classes"


def test_new_clients_have_their_part_of_the_groups(engine: Engine) -> None:
    """Six clients in three groups of two; the last two are new and have not trained."""
    scheme = {"scheme": "groups", "groups": 3, "clients": 6}
    counts = np.repeat(9 * np.eye(3, dtype=int) + 1, 2, axis=0)
    record = PartitionRecord("b" * 64, "groups", "Groups(3)", "mnist", scheme, list("abc"), counts, 0 * counts)
    weights = np.full((4, 4), 0.1)
    add(engine, "fedamp", [{"attention": weights}], partition=partitions.save(engine, record), scheme=scheme)
    drawing = attention.plot(engine, round=0)
    assert [text.get_text() for text in drawing.figure.axes[0].get_xticklabels()] == list("0123")
    assert "on own group 33 % (by chance 33 %)" in drawing.caption


def test_how_well_attention_tells_the_groups() -> None:
    shares = np.full((4, 4), 0.1)
    shares[[0, 1, 2, 3], [1, 0, 3, 2]] = 0.8
    np.fill_diagonal(shares, NAN)
    assert attention.recovered(shares, np.array([5, 5, 2, 2])) == 1
    # {0, 1}, {2, 3} against {0, 2}, {1, 3}: no pair together in both, 2/3 expected of 2 possible: (0 - 2/3) / (2 - 2/3).
    assert attention.recovered(shares, np.array([0, 1, 0, 1])) == pytest.approx(-0.5)


def test_negative_weights_are_drawn_about_zero(engine: Engine) -> None:
    p = np.array([[0.2, -0.1, 0.3, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    add(engine, "apple", [{"relationships": p}], partition=pathological(engine), scheme=PATHOLOGICAL)
    (image,) = attention.plot(engine).figure.axes[0].images
    assert np.nanmin(image.get_array()) == pytest.approx(-0.1)
    assert image.get_clim() == (-1, 1)
    assert image.colorbar.extend == "neither", "nothing is below the scale, which begins with negative weights"
    assert [text.get_text() for text in image.colorbar.ax.get_yticklabels()] == ["-1", "-0.1", "0", "0.1", "1"]
    assert float(image.norm(0.0)) == pytest.approx(0.5)
    assert 0.5 - float(image.norm(-0.1)) == pytest.approx(float(image.norm(0.1)) - 0.5)


def shade(engine: Engine) -> tuple[float, str]:
    """How dark the darkest weight on another client is, 0 being white paper; and what is written over the matrix."""
    (ax,) = attention.plot(engine).figure.axes
    image = ax.images[0]
    colours = image.cmap(image.norm(image.get_array()))[~np.ma.getmaskarray(image.get_array())]
    return float(1 - colours[:, :3].mean(axis=1).min()), " ".join(text.get_text() for text in ax.texts)


@pytest.mark.parametrize(("size", "said"), [(2.7e-101, "below 1e-100"), (0.0, "are 0"), (2e-6, ""), (0.5, "")])
def test_a_weight_that_is_next_to_nothing_looks_like_it(engine: Engine, size: float, said: str) -> None:
    """Divided by their sum, these weights were all in the colour of 100 %."""
    xi = np.array([[1, 0, size, 0], [0, 1, 0, size], [size, 0, 1, 0], [0, size, 0, 1]])
    add(engine, "fedamp", [{"attention": xi}], partition=pathological(engine), scheme=PATHOLOGICAL)
    dark, words = shade(engine)
    if said:
        assert dark < 0.01
        assert words.replace("\n", " ").endswith(said)
    else:
        assert words == ""
        assert 0.3 < dark < 0.5 if size < 1e-5 else dark > 0.6


def test_the_round_can_be_chosen(engine: Engine) -> None:
    matrices = [{"attention": np.full((4, 4), 0.25)}, {}, {"attention": np.eye(4)[::-1]}]
    add(engine, "fedamp", matrices, partition=pathological(engine), scheme=PATHOLOGICAL)
    assert attention.plot(engine).figure.axes[0].get_title().endswith("round 2")
    early = attention.plot(engine, round=0).figure.axes[0]
    assert early.get_title().endswith("round 0")
    assert np.nanmax(early.images[0].get_array()) == pytest.approx(0.25)
    with pytest.raises(UserError, match=r"(?s)after round 1\..*kept after: 0, 2"):
        attention.plot(engine, round=1)


def test_groups_are_those_of_the_partition_else_the_most_frequent_class() -> None:
    def groups(scheme: str, counts: list[list[int]], **of: Any) -> attention.ClientGroups:
        held = np.array(counts)
        return attention.groups(PartitionRecord("", scheme, "", "mnist", of, tuple("abcd"), held, 0 * held))

    made = groups("groups", [[9, 1, 1, 1]] * 3 + [[0, 0, 5, 5]] * 2, groups=2)
    assert (made.of.tolist(), made.names, made.true) == ([0, 0, 0, 1, 1], ("0, 1", "2, 3"), True)
    made = groups("dirichlet", [[1, 2, 9, 0], [5, 0, 4, 0], [0, 0, 3, 1]])
    assert (made.of.tolist(), made.names, made.true) == ([1, 0, 1], ("0", "2"), False)
    made = groups("pfllib", [[1, 2, 0, 0], [0, 0, 4, 4]], kind="pathological")
    assert (made.of.tolist(), made.true) == ([0, 1], True)


def test_on_a_page_the_matrix_is_in_the_order_of_the_groups(engine: Engine) -> None:
    add(engine, "fedamp", [{}, {"attention": XI}], partition=pathological(engine), scheme=PATHOLOGICAL)
    one = only("attention", engine)
    none, below, matrix, *lines = one.spec["data"]
    # By hand, of the clients in the order 0, 2, 3, 1: weights, and their shares.
    weights = [[None, 0.3, 0.1, 0.1], [6, None, 2, 0], [0.1, 0, None, 0.7], [0, 0, 0, None]]
    shares = [[None, 60, 20, 20], [75, None, 25, 0], [12.5, 0, None, 87.5], [0, 0, 0, None]]
    assert [[told[2] for told in row] for row in matrix["customdata"]] == weights
    assert [[told[3] for told in row] for row in matrix["customdata"]] == shares
    assert matrix["customdata"][1] == [[2, 0, 6, 75], [2, 2, None, None], [2, 3, 2, 25], [2, 1, 0, 0]]
    decades = np.log10(60)  # from 0.1 to 6
    places = [[pytest.approx(np.log10(10 * of) / decades, abs=1e-5) if of else None for of in row] for row in weights]
    assert matrix["z"] == places
    assert (matrix["zmin"], matrix["zmax"]) == (0, 1)
    bar = matrix["colorbar"]
    assert dict(zip(bar["ticktext"], bar["tickvals"], strict=True)) == {"0.1": 0, "1": pytest.approx(1 / decades, rel=1e-5)}
    assert none["z"] == [[1 if weight is None else None for weight in row] for row in weights]
    assert below["z"] == [[1 if weight == 0 else None for weight in row] for row in weights]
    assert "annotations" not in one.spec["layout"] or one.spec["layout"]["annotations"] == []
    assert one.spec["layout"]["yaxis"]["ticktext"] == ["0, 1", "2, 3"]
    assert [line["x"] for line in lines] == [[1.5, 1.5], [-0.5, 3.5]]
    assert "weight on others 0.65, on own group 74 % (by chance 33 %), ARI 1.00" in one.notes[0]


def test_on_a_page_weights_that_move_nothing_have_no_colour_of_the_scale(engine: Engine) -> None:
    """Shares of them would be bright: 100 % of 2.7e-101 is nothing."""
    tiny = np.full((4, 4), 2.7e-101)
    add(engine, "fedamp", [{}, {"attention": tiny}], partition=pathological(engine), scheme=PATHOLOGICAL)
    one = only("attention", engine)
    _, below, matrix, *_ = one.spec["data"]
    assert {cell for row in matrix["z"] for cell in row} == {None}
    assert sum(cell == 1 for row in below["z"] for cell in row) == 12
    assert matrix["colorbar"]["ticktext"] == ["1e-06", "1e-05", "0.0001", "0.001", "0.01", "0.1", "1"]
    (word,) = one.spec["layout"]["annotations"]
    assert word["text"] == "all weights on others<br>below 1e-100"
    assert contrast(word["font"]["color"], to_rgb(word["bgcolor"])) > 7
    assert below["customdata"][0][1][2:] == [2.7e-101, pytest.approx(100 / 3, rel=1e-5)]
    for page in PAGES:
        plain = [contrast(colour, page) for colour in (attention.BELOW, GREY)]
        assert max(plain) / min(plain) > 1.5, "the two are told apart"
    assert "light grey: less than the scale has" in one.caption


def test_on_a_page_weights_with_a_sign_have_a_scale_to_both_sides(engine: Engine) -> None:
    signed = [[1, -0.01, 0.1, 0], [10, 1, 0.01, 1e-9], [0.1, -10, 1, 0.1], [0.1, 0.1, 0.1, 1]]
    add(engine, "apple", [{}, {"relationships": signed}], partition=pathological(engine), scheme=PATHOLOGICAL)
    _, _, matrix, *_ = only("attention", engine).spec["data"]
    drawn = {
        told[2]: z for row, said in zip(matrix["z"], matrix["customdata"], strict=True) for z, told in zip(row, said, strict=True)
    }
    at = dict(zip(matrix["colorbar"]["ticktext"], matrix["colorbar"]["tickvals"], strict=True))
    assert drawn[0] is drawn[1e-9] is drawn[None] is None
    assert list(at) == ["-10", "-1", "-0.1", "-0.01", "0", "0.01", "0.1", "1", "10"]
    assert (at["-10"], at["0"], at["10"], drawn[-10], drawn[10]) == (0, 0.5, 1, 0, 1)
    assert np.diff(list(at.values())) == pytest.approx(
        [at["10"] - at["1"]] * 3 + [0.5 - at["-0.01"]] * 2 + [at["10"] - at["1"]] * 3
    )
    assert (drawn[-0.01], drawn[0.01], drawn[0.1]) == (at["-0.01"], at["0.01"], at["0.1"])
