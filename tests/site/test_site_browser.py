"""The page in a real browser: what a reader sees, clicks and prints, without a word on the console or to the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ViewportSize, expect
from sqlalchemy import Engine
from support.browser import Tab, chromium
from support.site_database import MADE, RUNNING, SNEAKY, fill, serving
from support.store_samples import write_round

from pflbench.report.selection import Filters
from pflbench.site import html, runs, serve
from pflbench.site.page import build
from pflbench.store import database as db
from pflbench.store.write import RoundRecord

WINDOW = ViewportSize(width=1100, height=800)
WITHOUT_FIGURES = "delete globalThis.DecompressionStream"  # what unpacks plotly.js


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = db.connect(db.to_url(str(tmp_path_factory.mktemp("site") / "results.db")))
    fill(engine)
    yield engine
    engine.dispose()


def written(engine: Engine, folder: Path, filters: Filters) -> str:
    """The address of a report in which all runs but the one under way have a page."""
    built = build(engine, MADE, filters, "shown")
    path = folder / "report.html"
    path.write_text(html.document(built, runs.pages(engine, built.runs, built.pages)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def file(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(engine, tmp_path_factory.mktemp("report"), Filters())


@pytest.fixture(scope="module")
def small(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of one run: its figures are few."""
    return written(engine, tmp_path_factory.mktemp("small"), Filters(datasets=("cifar10",)))


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    """A fresh tab; in the end it must have had nothing to complain of."""
    with opened(browser) as tab:
        yield tab
    assert tab.errors == []


@pytest.fixture
def plain(browser: Browser) -> Iterator[Tab]:
    """A tab that cannot draw: what is asked of the rest of the page costs little there."""
    with opened(browser, script=WITHOUT_FIGURES) as tab:
        yield tab
    assert tab.errors == []


@contextmanager
def opened(browser: Browser, *, script: str = "") -> Iterator[Tab]:
    """script: runs before those of a page."""
    context = browser.new_context(viewport=WINDOW, color_scheme="light")
    if script:
        context.add_init_script(script)
    yield Tab(context)
    context.close()


@pytest.fixture(scope="module")
def loaded(browser: Browser, file: str) -> Iterator[Tab]:
    """The report with all its figures drawn: that costs a browser most, so the tests share one."""
    with opened(browser) as tab:
        tab.page.goto(file)
        expect(tab.page.locator("#content .plot .main-svg").first).to_be_visible()
        expect(tab.page.locator("#content .plot:visible:not(:has(.main-svg))")).to_have_count(0)
        yield tab


@pytest.fixture
def shared(loaded: Tab) -> Iterator[Tab]:
    """The same, at its beginning; with nothing to complain of in the end."""
    loaded.page.emulate_media(color_scheme="light", media="screen")
    unchosen = "delete document.documentElement.dataset.theme; localStorage.clear()"
    loaded.page.evaluate(unchosen)
    if "light" in str(loaded.page.locator("#theme").get_attribute("aria-label")):
        # It hears of the system's theme a moment later: there and back leads to the light one in any case.
        loaded.page.locator("#theme").click()
        loaded.page.locator("#theme").click()
        loaded.page.evaluate(unchosen)
    loaded.page.evaluate("location.hash = '?'; scrollTo(0, 0)")
    expect(loaded.page.locator("#content")).to_be_visible()
    loaded.page.set_viewport_size(WINDOW)
    yield loaded
    assert loaded.errors == []


def column(tab: Tab, table: str, index: int) -> list[str]:
    cells = "[...document.querySelectorAll(`#${id} tbody tr`)].map((row) => row.cells[i])"
    script = f"([id, i]) => {cells}.map((cell) => cell.dataset.sort ?? cell.textContent)"
    return list(tab.page.evaluate(script, [table, index]))


def test_it_loads_without_the_network_and_draws_its_figures(shared: Tab, file: str) -> None:
    plots = shared.page.locator("#content .plot:visible")
    assert plots.count() > 2
    assert shared.page.locator("#content .plot:visible:has(.main-svg)").count() == plots.count()
    assert shared.requests == [file]
    names = shared.page.locator("#figures-curves .legendtext").all_text_contents()
    assert {"Local", "FedAvg", "Ditto"} <= set(names)
    buttons = "(plot) => [...plot.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title.toLowerCase())"
    own = ["download plot as a png", "zoom", "pan", "zoom in", "zoom out", "reset axes"]
    assert all(plot.evaluate(buttons) == own for plot in plots.all()), "Plotly's have one that uploads the figure"


WIDTHS = (400, 1100, 1900)  # pixels: a telephone, a laptop, a wide screen
BOXES = """(plot) => ['.modebar', '.legend .bg', '.nsewdrag', '.xtitle', '.ytitle', '.scrollbar'].map((part) => {
    const { left, top, right, bottom } = plot.querySelector(part)?.getBoundingClientRect() ?? {};
    return right > left ? [left, top, right, bottom] : null;
})"""


def apart(one: list[float], other: list[float]) -> bool:
    """Boxes as left, top, right, bottom."""
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] + 1 or other[3] <= one[1] + 1


@pytest.mark.parametrize("width", WIDTHS)
def test_the_toolbar_the_legend_and_the_axes_are_apart(shared: Tab, file: str, width: int) -> None:
    """And tables take the width of the window, and scroll in their own box only where that is not enough; no page ever does."""
    shared.page.set_viewport_size({"width": width, "height": 800})  # after drawing: a window may change
    plots = shared.page.locator("#content .plot:visible")
    expect(plots.first.locator(".main-svg").first).to_have_css("width", re.compile(rf"{plots.first.bounding_box()['width']:.0f}"))  # type: ignore[index]
    shared.page.wait_for_timeout(300)
    legends = 0
    for plot in plots.all():
        plot.hover()
        toolbar, legend, axes, x, y, scrollbar = plot.evaluate(BOXES)
        assert toolbar is not None
        assert scrollbar is None, "a legend that has to be scrolled"
        assert axes[3] - axes[1] > 150, "the legend took the figure's room"
        there = [box for box in (legend, axes, x, y) if box is not None]
        assert all(apart(toolbar, box) for box in there)
        if legend is not None:
            legends += 1
            assert all(apart(legend, box) for box in (axes, x, y) if box is not None)
    assert legends > 1
    table, box, page = shared.page.evaluate(
        """() => { const table = document.querySelector('#data-overhead');
        return [table.offsetWidth, table.parentElement.clientWidth, document.documentElement.scrollWidth]; }"""
    )
    assert page <= width
    beside = 256 if width >= 1216 else 0  # the contents
    assert box >= min(table, width - beside - 60)
    assert table > 1056 or width < WIDTHS[-1], "wider than the text"
    shared.page.goto(f"{file}#run-1")
    shared.page.locator("#run .main-svg:visible").first.wait_for()
    assert shared.page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_the_means_to_unpack_there_are_the_tables_and_a_word(plain: Tab, file: str) -> None:
    plain.page.goto(file)
    expect(plain.page.locator("#lacking")).to_contain_text("pflbench plot")
    plain.page.locator("#data-accuracy thead th").nth(1).get_by_role("button").click()
    assert column(plain, "data-accuracy", 1) == ["98.50", "86.00", "83.33", "10.00"]
    plain.page.locator("#line-1 a").click()
    expect(plain.page.locator("#run h1")).to_contain_text("Run 1")


def test_without_scripts_there_are_the_tables_and_a_word(browser: Browser, file: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file)
    expect(page.locator("noscript p")).to_contain_text("Without JavaScript")
    expect(page.locator("#data-accuracy")).to_be_visible()
    context.close()


def test_heads_sort_by_number_and_back_by_keyboard(shared: Tab) -> None:
    head = shared.page.locator("#data-accuracy thead th").nth(1)
    unsorted = column(shared, "data-accuracy", 1)
    head.get_by_role("button").click()
    # As texts, "9.00" would come before "98.50".
    assert column(shared, "data-accuracy", 1) == ["98.50", "86.00", "83.33", "10.00"]
    assert head.get_attribute("aria-sort") == "descending"
    shared.page.keyboard.press("Enter")
    assert column(shared, "data-accuracy", 1) == ["10.00", "83.33", "86.00", "98.50"]
    assert head.get_attribute("aria-sort") == "ascending"
    shared.page.keyboard.press("Enter")
    assert column(shared, "data-accuracy", 1) == unsorted
    assert head.get_attribute("aria-sort") is None
    shared.page.locator("#data-accuracy thead th").nth(2).get_by_role("button").click()
    assert column(shared, "data-accuracy", 2) == ["60.00", "", "", ""], "cells without a value come last"
    for name, index, expected in (("Best %", 9, ["99.00", "98.00", "87.00"]), ("Run", 0, ["8", "7", "6"])):
        shared.page.locator("#data-runs thead").get_by_role("button", name=name).click()
        assert column(shared, "data-runs", index)[:3] == expected
    shared.page.locator("#data-runs thead").get_by_role("button", name="Method").click()
    assert column(shared, "data-runs", 2) == sorted(column(shared, "data-runs", 2))


def test_a_cell_leads_to_its_runs_and_back(shared: Tab) -> None:
    cell = shared.page.locator("#data-accuracy details", has_text="98.50")
    cell.locator("summary").click()
    place = shared.page.evaluate("scrollY")
    cell.get_by_role("link", name="4").click()
    expect(shared.page.locator("#run h1")).to_have_text("Run 4: Ditto on MNIST, Dir(0.1), seed 1")
    expect(shared.page.locator("#content")).to_be_hidden()
    expect(shared.page.locator("#run .plot .main-svg").first).to_be_visible()
    specification = shared.page.locator("#run section", has_text="Specification")
    expect(specification.get_by_role("row", name="method.hyperparameters.lam")).to_contain_text("0.1")
    shared.page.get_by_role("link", name="run 2").click()
    expect(shared.page.locator("#run h1")).to_contain_text("Run 2")
    shared.page.go_back()
    expect(shared.page.locator("#run h1")).to_contain_text("Run 4")
    shared.page.go_back()
    expect(shared.page.locator("#content")).to_be_visible()
    expect(shared.page.locator("#run")).to_be_hidden()
    assert shared.page.evaluate("scrollY") == place


def test_an_unknown_place_is_told(plain: Tab, file: str) -> None:
    plain.page.goto(f"{file}#nothing")
    told = plain.page.locator("#unknown[role=alert]")
    for hash, text in {
        "nothing": "#nothing",
        "run-99": "no run 99",
        f"run-{RUNNING}": f"--runs {RUNNING}",
        "%E0": "#%E0",
    }.items():
        plain.page.evaluate("(hash) => { location.hash = hash; }", hash)
        expect(told).to_contain_text(text)
        expect(plain.page.locator("#content")).to_be_visible()
    plain.page.evaluate("location.hash = 'runs'")
    expect(told).to_be_hidden()


def test_the_list_of_runs_is_filtered_by_every_word(shared: Tab) -> None:
    shared.page.get_by_label("Filter").fill("fedavg FINISHED")
    rows = shared.page.locator("#data-runs tbody tr:visible")
    assert rows.locator("th").all_inner_texts() == ["5", "3", "1"]
    expect(shared.page.locator("#matches")).to_have_text("3 of 8")


def shown_rows(tab: Tab, table: str) -> list[str]:
    return [text.strip() for text in tab.page.locator(f"#{table} tbody tr:visible th").all_inner_texts()]


def names_in(tab: Tab, figures: str) -> set[str]:
    return set(tab.page.locator(f"#{figures} figure:visible .legendtext").all_text_contents())


def settle(tab: Tab) -> None:
    """Waits for the figures, which are drawn one after the other."""
    expect(tab.page.locator("#content .plot[aria-busy]:visible")).to_have_count(0)


def choose(tab: Tab, *titles: str) -> None:
    if not tab.page.locator("#choice[open]").count():
        tab.page.locator("#choice summary").click()
    for title in titles:
        tab.page.locator("#choice").get_by_label(title, exact=True).check()
    settle(tab)


def test_methods_are_chosen_once_for_tables_figures_and_runs(shared: Tab) -> None:
    choose(shared, "Ditto", "Local")
    expect(shared.page.locator("#chosen")).to_have_text("Ditto, Local; all datasets")
    for table, more in (("data-accuracy", ["Majority class"]), ("data-overhead", [])):
        assert shown_rows(shared, table) == ["Local", "Ditto", *more]
    assert shown_rows(shared, "data-runs") == ["8", "7", "4", "2"]
    heads = shared.page.locator("#data-accuracy thead th:visible").all_inner_texts()
    assert [head.split("\n")[0] for head in heads] == ["Method", "MNIST"], "of Cifar10 there is only FedAvg"
    assert shared.page.locator("#data-leaders tbody tr:visible").count() == 1
    assert names_in(shared, "figures-curves") == {"Local", "Ditto", "Majority class"}
    assert names_in(shared, "leaders") == {"Local", "Ditto", "Majority class"}
    shared.page.get_by_role("button", name="Show all").click()
    settle(shared)
    assert shown_rows(shared, "data-accuracy") == ["Local", "FedAvg", "Ditto", "Majority class"]
    assert names_in(shared, "figures-curves") == {"Local", "FedAvg", "Ditto", "Majority class"}


def test_the_pareto_front_is_that_of_the_chosen_methods(shared: Tab) -> None:
    """Of all of them it is what the report drew; FedAvg alone lies on its own front."""
    front = "document.querySelector('#figures-overhead .plot').data.find((trace) => trace.name === 'Pareto front').y"
    drawn = shared.page.evaluate(front)
    assert drawn == [10, 98.5]
    choose(shared, "Local", "FedAvg", "Ditto")
    assert shared.page.evaluate(front) == drawn
    for title in ("Local", "Ditto"):
        shared.page.locator("#choice").get_by_label(title, exact=True).uncheck()
    settle(shared)
    assert shared.page.evaluate(front) == [86]


def test_a_dataset_is_chosen_with_its_columns_and_figures(plain: Tab, file: str) -> None:
    plain.page.goto(file)
    choose(plain, "Cifar10")
    assert shown_rows(plain, "data-accuracy") == ["FedAvg", "Majority class"]
    assert shown_rows(plain, "data-runs") == ["5"]
    assert {title.split(",")[0] for title in plain.page.locator("#figures figure:visible h4").all_inner_texts()} == {"Cifar10"}
    heads = plain.page.locator("#data-table2 thead th:visible").all_inner_texts()
    assert [head.split("\n")[0] for head in heads] == ["Method", "Cifar10", "paper", "verdict"], "the paper's other settings go"
    expect(plain.page.locator("#leaders figure:visible h4")).to_have_text("Cifar10, Dir(0.1)")
    expect(plain.page.locator("#table-overhead")).to_be_hidden()  # its runs are those of MNIST
    expect(plain.page.locator("nav").get_by_role("link", name="Overhead")).to_be_hidden()


def test_a_link_holds_the_view(plain: Tab, file: str, browser: Browser) -> None:
    plain.page.goto(file)
    choose(plain, "Ditto", "FedAvg", "MNIST")
    plain.page.locator("#data-accuracy thead th").nth(1).get_by_role("button").click()
    plain.page.locator("#data-accuracy details", has_text="98.50").locator("summary").click()
    plain.page.get_by_label("Filter").fill("finished ditto")
    plain.page.get_by_role("navigation").get_by_role("link", name="Runs", exact=True).click()
    expect(plain.page).to_have_url(re.compile("#runs[?]method=Ditto&method=FedAvg&dataset=MNIST&sort=data-accuracy.1.-1&open="))
    with opened(browser, script=WITHOUT_FIGURES) as other:
        other.page.goto(plain.page.url)
        expect(other.page.locator("#chosen")).to_have_text("Ditto, FedAvg; MNIST")
        assert shown_rows(other, "data-accuracy") == ["Ditto", "FedAvg", "Majority class"]
        assert column(other, "data-accuracy", 1) == ["98.50", "86.00", "83.33", "10.00"]
        expect(other.page.locator("#data-accuracy details[open]")).to_contain_text("98.50")
        assert shown_rows(other, "data-runs") == ["4", "2"]
        expect(other.page.locator("#matches")).to_have_text("2 of 8")
        other.page.locator("#line-4 a").click()
        expect(other.page.locator("#run h1")).to_contain_text("Run 4")
        other.page.go_back()
        assert shown_rows(other, "data-runs") == ["4", "2"]
        other.page.goto(f"{file}#?method=nobody&sort=nothing.9.1&sort=data-runs.99.1&sort=choice.0.1&open=x&compare=77")
        expect(other.page.locator("#chosen")).to_have_text("all methods; all datasets")
        assert other.errors == []


def test_two_runs_stand_side_by_side(shared: Tab) -> None:
    for run in (1, 4):
        shared.page.get_by_label(f"Compare run {run}", exact=True).check()
    expect(shared.page.get_by_label("Compare run 2", exact=True)).to_be_disabled()
    shared.page.get_by_role("link", name="side by side").click()
    expect(shared.page.locator("#run h1")).to_have_text("Runs 4 and 1 side by side")
    rows = shared.page.locator("#run table tr").all_inner_texts()
    cells = {name: values for name, *values in (row.split("\t") for row in rows)}
    assert (cells["seed"], cells["method.name"], cells["lam"]) == (["1", "0"], ["ditto", "fedavg"], ["0.1", "-"])
    assert not {"train.lr", "Key", "Created"} & set(cells)
    curves = shared.page.locator("#run .plot").first
    expect(curves.locator(".main-svg").first).to_be_visible()
    traces = "(plot) => plot.data.filter((trace) => trace.x.length > 1).map((trace) => [trace.name, trace.line.color, trace.y])"
    assert curves.evaluate(traces) == [
        ["run 4: as deployed", "#0072B2", [10, 97, 98]],
        ["run 1: as deployed", "#D55E00", [10, 85, 80]],
    ]
    assert "#compare-4-1?" in shared.page.url
    shared.page.evaluate(f"location.hash = 'compare-1-{RUNNING}'")
    expect(shared.page.locator("#unknown")).to_contain_text(f"Run {RUNNING} has no page")


def test_a_figure_is_saved_as_svg_and_printed_alone(shared: Tab) -> None:
    shared.page.emulate_media(color_scheme="dark")
    figure = shared.page.locator("#figures-curves figure").first
    with shared.page.expect_download() as download:
        figure.get_by_role("button", name="SVG").click()
    assert download.value.suggested_filename == "figure-curves-mnist-dir-0-1.svg"
    text = download.value.path().read_text(encoding="utf-8")
    assert "Test accuracy" in text
    assert "fill: rgb(255, 255, 255)" in text, "white paper, though the page is dark"
    shared.page.evaluate("window.print = () => {}")  # it would wait for the reader
    figure.get_by_role("button", name="PDF").click()
    shared.page.emulate_media(media="print")
    printed = shared.page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type */Page\b", printed)) == 1
    assert b"MediaBox [0 0 510 " in printed  # points: 680 pixels
    assert len(re.findall(rb"/Type */Page\b", shared.page.pdf(format="A4"))) > 2, "after it, the page prints as ever"


@pytest.mark.slow
def test_the_theme_is_that_of_the_system_until_the_reader_chooses(tab: Tab, small: str) -> None:
    def ink() -> str:
        return str(tab.page.evaluate("getComputedStyle(document.querySelector('#figures-curves .xtitle')).fill"))

    def paper() -> str:
        return str(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    tab.page.emulate_media(color_scheme="dark")
    tab.page.goto(small)
    tab.page.locator("#figures-curves .xtitle").first.wait_for()
    dark = (paper(), ink())
    tab.page.get_by_role("button", name="Switch to light colours").click()
    expect(tab.page.locator("#figures-curves .xtitle").first).not_to_have_css("fill", dark[1])
    light = (paper(), ink())
    assert contrast(*dark) > 7
    assert contrast(*light) > 7
    assert light[0] != dark[0]
    tab.page.reload()
    tab.page.locator("#figures-curves .xtitle").first.wait_for()
    assert (paper(), ink()) == light


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours "rgb(r, g, b)"."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_is_legible_in_both_themes(plain: Tab, file: str) -> None:
    """WCAG AA: 4.5 for every element that has text of its own, against the nearest background."""
    script = """() => [...document.querySelectorAll('#content *')].filter((e) => e.offsetParent && !e.closest('.plot') &&
        [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).map((e) => {
          let behind = e;
          while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
          return [getComputedStyle(e).color, getComputedStyle(behind).backgroundColor].join(';');
        })"""
    plain.page.goto(file)
    for _ in range(2):
        pairs = set(plain.page.evaluate(script))
        assert len(pairs) > 2
        assert all(contrast(*pair.split(";")) >= 4.5 for pair in pairs), pairs
        plain.page.locator("#theme").click()


NOTE_WHAT_IS_PRINTED = """() => addEventListener('beforeprint', () => {
    const [title] = document.querySelectorAll('.xtitle');
    const widths = [...document.querySelectorAll('#content table, .main-svg')].map((e) => e.getBoundingClientRect().width);
    window.printed = [getComputedStyle(document.body).color, getComputedStyle(title).fill, Math.max(...widths)];
})"""


@pytest.mark.parametrize("chosen", [False, True])
def test_it_prints_dark_on_white_whatever_the_theme(shared: Tab, chosen: bool) -> None:
    shared.page.emulate_media(color_scheme="light" if chosen else "dark")
    if chosen:
        shared.page.get_by_role("button", name="Switch to dark colours").click()
    on_screen = shared.page.evaluate("getComputedStyle(document.body).color")
    shared.page.evaluate(NOTE_WHAT_IS_PRINTED)
    printed = shared.page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000
    text, figure, width = shared.page.evaluate("window.printed")
    assert contrast(text, "rgb(255, 255, 255)") > 7
    assert contrast(figure, "rgb(255, 255, 255)") > 7
    assert width <= 690  # pixels between the margins of A4
    assert shared.page.evaluate("getComputedStyle(document.body).color") == on_screen
    shared.page.emulate_media(media="print")
    for hidden in ("#theme", "#filter", "nav", "#missing"):
        expect(shared.page.locator(hidden)).to_be_hidden()


@pytest.mark.slow
def test_serve_shows_a_new_round_and_keeps_the_readers_place(tab: Tab, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REST", 0)
    with serving(str(engine.url)) as server, closing(tab.page):
        tab.page.goto(server.address)
        expect(tab.page.locator("#live")).to_have_text("Live")
        expect(tab.page.locator("#running")).to_contain_text("round 2 of 9, accuracy 65.00 %, best 70.00 %")
        tab.page.locator("#data-accuracy thead th").nth(1).get_by_role("button").click()
        tab.page.get_by_label("Filter").fill("running")
        tab.page.locator("#data-runs").scroll_into_view_if_needed()
        place = tab.page.evaluate("scrollY")
        assert place > 0
        write_round(engine, RUNNING, RoundRecord(3, 0.75))
        expect(tab.page.locator("#running")).to_contain_text("round 3 of 9, accuracy 75.00 %, best 75.00 %")
        assert tab.page.evaluate("scrollY") == place
        assert column(tab, "data-accuracy", 1) == ["98.50", "86.00", "83.33", "10.00"]
        expect(tab.page.locator("#matches")).to_have_text("1 of 8")
        tab.page.locator(f"#line-{RUNNING} a").click()
        expect(tab.page.locator("#run")).to_contain_text("3 of 9, best 75.00 %")
        expect(tab.page.locator(".status-line")).to_contain_text(SNEAKY)
        write_round(engine, RUNNING, RoundRecord(4, 0.8))
        expect(tab.page.locator("#run")).to_contain_text("4 of 9, best 80.00 %")
        assert all(request.startswith(server.address) for request in tab.requests)
