"use strict";
(() => {
  const root = document.documentElement;
  const live = document.body.hasAttribute("data-live");
  const byId = (id) => document.getElementById(id);
  const json = (id) => (byId(id) ? JSON.parse(byId(id).textContent) : null);
  const PRINTED = 680; // pixels: the width of a page of A4 between its margins
  const POLL = 3000; // milliseconds
  const MANY = 12; // methods in a figure, beyond which the colours of all say nothing
  const MARGINS = 60; // pixels of a figure's height beside its axes
  // Named one by one: among Plotly's own is one that sends the figure to its makers.
  const BUTTONS = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]];
  const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: BUTTONS };

  // ---- Theme

  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

  function stored(value) {
    try { // a browser may forbid it to files
      if (value === undefined) return localStorage.getItem("pflbench-theme");
      localStorage.setItem("pflbench-theme", value);
    } catch { /* then the choice lasts as long as the page */ }
    return null;
  }

  function showTheme() {
    byId("theme").textContent = dark() ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
    redraw();
  }

  // ---- Figures

  let before = null; // what printing has changed, while it lasts

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function themed({ data, layout: given }) {
    const [ink, rule, paper] = ["--ink", "--rule", "--paper"].map(colour);
    const layout = { ...given, paper_bgcolor: paper, plot_bgcolor: paper, autosize: true, uirevision: "kept" };
    layout.width = before ? PRINTED : undefined;
    layout.font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink };
    layout.hoverlabel = { font: { family: layout.font.family } };
    for (const axis of ["xaxis", "yaxis"]) {
      const title = { ...given[axis].title, font: { size: 14 } };
      layout[axis] = { ...given[axis], title, gridcolor: rule, linecolor: rule, tickcolor: rule };
    }
    return { data, layout };
  }

  // plotly.js, as gzip in base64; the same script as if it stood in the page. False where the browser cannot unpack it.
  async function load() {
    if (!globalThis.DecompressionStream) return false;
    const packed = Uint8Array.from(atob(byId("plotly").textContent), (letter) => letter.charCodeAt(0));
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(unpacked).text();
    document.head.append(script);
    byId("plotly").remove();
    return true;
  }

  const loaded = () => globalThis.Plotly !== undefined;

  // What Plotly draws: the chosen methods, in the page's colours, with room for the legend.
  function figureOf(plot) {
    const { data, layout } = themed(plot.shown);
    layout.height += plot.legend ?? 0;
    layout.legend = { ...layout.legend, maxheight: plot.legend };
    return { data, layout };
  }

  function draw(plot) {
    plot.removeAttribute("aria-busy");
    plot.spec ??= json(plot.dataset.spec);
    plot.shown = plot.closest("#content") ? ofChosenMethods(plot.spec, plot.dataset.best?.split("\n")) : plot.spec;
    plot.style.height = `${plot.shown.layout.height + (plot.legend ?? 0)}px`;
    const grey = plot.closest("figure").querySelector(":scope > .note");
    if (grey) grey.hidden = !plot.shown.grey;
    if (!loaded()) return;
    const { data, layout } = figureOf(plot);
    const first = !plot.on;
    Plotly.react(plot, data, layout, CONFIG);
    if (first) plot.on("plotly_afterplot", () => fit(plot));
    fit(plot);
  }

  // The legend stands below the axes. How high it is there only the browser knows, at every width anew; Plotly would take the
  // room from the axes, and give it a scroll bar.
  function fit(plot) {
    const entries = plot.querySelector(".legend .scrollbox")?.getBBox().height;
    const height = entries ? Math.ceil(entries) + 10 : 0;
    if (!plot.offsetWidth || height === (plot.legend ?? 0)) return;
    plot.legend = height;
    draw(plot);
  }

  const drawn = () => [...document.querySelectorAll(".plot")].filter((plot) => plot.spec);
  const redraw = () => drawn().forEach(draw);
  // What is hidden does not notice that the window changes.
  const resize = () => drawn().filter((plot) => plot.on && plot.offsetWidth).forEach((plot) => Plotly.Plots.resize(plot));

  // One after the other, so that the page answers in between.
  function drawAll() {
    const next = [...document.querySelectorAll("#content .plot")].find((plot) => (!plot.spec || plot.hasAttribute("aria-busy")) && plot.offsetWidth);
    if (!next || !loaded() || byId("content").hidden) return;
    draw(next);
    setTimeout(drawAll);
  }

  function redrawAll() {
    drawn().forEach((plot) => plot.setAttribute("aria-busy", "true"));
    drawAll();
  }

  // Paper is white and as wide as it is: figures are drawn for it, tables that are wider made smaller.
  function beforePrint() {
    if (before) return;
    before = { theme: root.dataset.theme };
    root.dataset.theme = "light";
    root.classList.add("printing");
    const alone = document.querySelector(".plot.alone");
    if (alone) {
      draw(alone);
      byId("sheet").textContent = `@page { size: ${PRINTED}px ${alone.offsetHeight}px; margin: 0; }`;
      return;
    }
    document.querySelectorAll("#content .plot").forEach(draw);
    document.querySelectorAll("#content .scroll > table").forEach((table) => {
      table.style.zoom = Math.min(1, PRINTED / table.offsetWidth);
    });
  }

  function afterPrint() {
    if (before.theme === undefined) delete root.dataset.theme;
    else root.dataset.theme = before.theme;
    before = null;
    root.classList.remove("printing");
    document.querySelector(".plot.alone")?.classList.remove("alone");
    byId("sheet").textContent = "";
    document.querySelectorAll("#content .scroll > table").forEach((table) => { table.style.zoom = ""; });
    redraw();
    resize();
  }

  // ---- Figures as files

  // For paper: in light colours on white, whatever the page has.
  function forPaper(make) {
    const theme = root.dataset.theme;
    root.dataset.theme = "light";
    root.classList.add("printing");
    const made = make();
    root.classList.remove("printing");
    if (theme === undefined) delete root.dataset.theme;
    else root.dataset.theme = theme;
    return made;
  }

  function save(plot, format) {
    if (format === "pdf") {
      plot.classList.add("alone"); // the print dialog offers a PDF
      print();
    } else {
      const figure = forPaper(() => figureOf(plot));
      const filename = plot.closest("figure").id;
      Plotly.downloadImage(figure, { format, filename, width: plot.offsetWidth, height: figure.layout.height });
    }
  }

  // ---- Choice of methods and datasets

  const checked = (name) => [...document.querySelectorAll(`#content input[name="${name}"]:checked`)].map((box) => box.value);
  const titles = (kind) => [...document.querySelectorAll(`#choice input[name="${kind}"]`)].map((box) => box.value);

  // "FedALA (p=2)" is a label of FedALA, as a line's name and under a row; "round 3" of no method.
  function methodOf(label) {
    const text = label.replaceAll("<br>", " ").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
    return titles("method").find((title) => text === title || text.startsWith(`${title} `));
  }

  // best: the labels of the methods, best first; the first three keep their colours if there are many.
  function ofChosenMethods(spec, best = []) {
    const methods = new Set(checked("method"));
    const isShown = (label) => !methods.size || !methodOf(label) || methods.has(methodOf(label));
    let { data, layout } = spec;
    if (methods.size) {
      data = data.filter((trace) => isShown(trace.name ?? ""));
      ({ data, layout } = withRows(data, layout, isShown));
      data = data.map((trace) => (trace.name === "Pareto front" ? { ...trace, ...paretoFront(data) } : trace));
    }
    const lines = new Set(data.map((trace) => trace.name));
    const shown = best.filter((label) => lines.has(label));
    const leading = shown.slice(0, 3);
    const grey = shown.length > MANY;
    if (grey) {
      const pale = { color: "rgba(128,128,128,0.35)" };
      const isColoured = ({ name }) => leading.includes(name) || !methodOf(name ?? "");
      const others = data.filter((trace) => !isColoured(trace));
      data = [
        ...others.map((one) => ({ ...one, showlegend: false, mode: "lines", line: { ...one.line, ...pale }, fillcolor: "rgba(0,0,0,0)" })),
        ...data.filter(isColoured),
      ];
    }
    return { data, layout, grey };
  }

  // Figures with a row for each method: the rows of others are taken out, and the figure becomes lower.
  function withRows(data, layout, isShown) {
    const { ticktext, tickvals, range } = layout.yaxis ?? {};
    if (!range || !ticktext?.some(methodOf) || !data.every(({ y }) => y)) return { data, layout };
    const kept = tickvals.filter((_, i) => isShown(ticktext[i]));
    const row = new Map(kept.map((value, i) => [value, i]));
    const [bottom, top] = range;
    const removed = tickvals.length - kept.length;
    const height = layout.height - (removed * (layout.height - MARGINS)) / tickvals.length;
    const yaxis = {
      ...layout.yaxis, range: [bottom - removed, top], tickvals: kept.map((_, i) => i), ticktext: ticktext.filter(isShown),
    };
    return {
      // An entry of the legend alone has no point.
      data: data.filter(({ y }) => y[0] === null || row.has(y[0])).map((trace) => ({ ...trace, y: trace.y.map((y) => row.get(y) ?? null) })),
      layout: { ...layout, height: Math.max(height, 200), yaxis },
    };
  }

  function paretoFront(data) {
    const points = data.filter((trace) => methodOf(trace.name ?? "")).map((trace) => [trace.x[0], trace.y[0]]);
    // Of two that cost the same the better comes first.
    points.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
    const front = points.filter(([, y], i) => points.slice(0, i).every((before) => before[1] < y));
    return { x: front.map(([x]) => x), y: front.map(([, y]) => y) };
  }

  // Everything that is made of runs says so in data-runs.
  function choose() {
    const [methods, datasets] = ["method", "dataset"].map((kind) => new Set(checked(kind)));
    const all = !methods.size && !datasets.size;
    const lines = [...document.querySelectorAll("#data-runs tbody tr")];
    const isChosen = ({ method, dataset }) => (!methods.size || methods.has(method)) && (!datasets.size || datasets.has(dataset));
    const runs = new Set(lines.filter((line) => isChosen(line.dataset)).map((line) => line.id.slice(5)));
    const isShown = (element) => all || element.dataset.runs?.split(",").some((run) => runs.has(run));
    lines.forEach((line) => { line.chosen = isChosen(line.dataset); });
    document.querySelectorAll("#tables table").forEach((table) => chooseCells(table, isShown, !datasets.size));
    for (const item of document.querySelectorAll("#data-leaders li")) item.hidden = !isShown(item);
    for (const row of document.querySelectorAll("#data-leaders tbody tr")) row.hidden = !row.querySelector("li:not([hidden])");
    for (const figure of document.querySelectorAll("#content figure")) {
      const of = titles("dataset").find((title) => figure.querySelector("h4").textContent.startsWith(`${title}, `));
      figure.hidden = figure.dataset.runs ? !isShown(figure) : datasets.size > 0 && of !== undefined && !datasets.has(of);
    }
    for (const block of document.querySelectorAll("#tables .block, #figures .block")) {
      block.hidden = !block.querySelector("figure:not([hidden]), tbody tr:not([hidden])");
    }
    for (const link of document.querySelectorAll("nav li li a")) link.parentElement.hidden = byId(link.hash.slice(1))?.hidden ?? false;
    const said = [[methods, "methods"], [datasets, "datasets"]].map(([chosen, kind]) => [...chosen].join(", ") || `all ${kind}`);
    if (byId("chosen")) byId("chosen").textContent = said.join("; ");
    filter();
  }

  // Rows and columns without a chosen run are hidden; columns of one setting together. withPaper: settings without any run stay.
  function chooseCells(table, isShown, withPaper) {
    if (!table.querySelector("[data-runs]")) return;
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) row.hidden = ![...row.cells].some(isShown);
    const majority = table.querySelector(".majority");
    if (majority) majority.hidden = rows.every((row) => row.hidden);
    const heads = [...[...table.tHead.rows].at(-1).cells].slice(1);
    const groups = table.tHead.rows.length > 1 ? [...table.tHead.rows[0].cells].slice(1) : [];
    const starts = heads.map((_, i) => i).filter((i) => !heads[i].matches(".beside"));
    const spans = groups.length ? groups.map((group) => group.colSpan) : starts.map((start, i) => (starts[i + 1] ?? heads.length) - start);
    let first = 1;
    spans.forEach((span, i) => {
      const cells = rows.flatMap((row) => [...row.cells].slice(first, first + span));
      const ofRuns = cells.filter((cell) => cell.dataset.runs);
      const shown = ofRuns.length ? ofRuns.some((cell) => !cell.parentElement.hidden && isShown(cell)) : withPaper;
      for (const cell of [...cells, ...heads.slice(first - 1, first - 1 + span), ...groups.slice(i, i + 1)]) cell.hidden = !shown;
      first += span;
    });
  }

  function rechoose() {
    choose();
    redrawAll();
    remember();
  }

  // ---- Tables

  const sorted = new Map(); // id of a table -> [column, direction]

  const sortValue = (cell) => cell.dataset.sort ?? cell.textContent;

  function compare(a, b) {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  }

  function sort(table, column, direction) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.forEach((row, i) => { row.dataset.place ??= i; });
    const value = (row) => sortValue(row.cells[column]);
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (!direction || (!x && !y)) return a.dataset.place - b.dataset.place;
      if (!x || !y) return x ? -1 : 1; // what is empty comes last either way
      return direction * compare(x, y) || a.dataset.place - b.dataset.place;
    });
    body.append(...rows);
    const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
    [...heads].forEach((head, i) => {
      if (i === column && direction) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    sorted.set(table.id, [column, direction]);
  }

  // Numbers begin with the largest, texts with A; the third click is the order of before.
  function clickHead(head) {
    const table = head.closest("table");
    const [column, before] = sorted.get(table.id) ?? [null, 0];
    const values = [...table.tBodies[0].rows].map((row) => sortValue(row.cells[head.cellIndex])).filter(Boolean);
    const first = values.length && values.every((value) => !Number.isNaN(Number(value))) ? -1 : 1;
    const now = column === head.cellIndex ? before : 0;
    sort(table, head.cellIndex, now === 0 ? first : now === first ? -first : 0);
    remember();
  }

  // The list of runs: what is chosen and has every word; settings in which these runs differ.
  function filter() {
    const field = byId("filter");
    if (!field) return;
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...byId("data-runs").tBodies[0].rows];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = row.chosen === false || !words.every((word) => text.includes(word));
    }
    const shown = rows.filter((row) => !row.hidden);
    byId("matches").textContent = shown.length < rows.length ? `${shown.length} of ${rows.length}` : "";
    for (const head of byId("data-runs").tHead.querySelectorAll(".setting")) {
      const column = head.cellIndex;
      head.hidden = new Set(shown.map((row) => row.cells[column].textContent)).size < 2;
      for (const row of rows) row.cells[column].hidden = head.hidden;
    }
  }

  // ---- What a link holds: #place?method=...&dataset=...&sort=table.column.direction&open=...&filter=...

  const place = () => location.hash.slice(1).split("?")[0];

  function view() {
    const query = new URLSearchParams();
    for (const box of document.querySelectorAll("#content input:checked")) query.append(box.name, box.value);
    for (const [id, [column, direction]] of sorted) if (direction) query.append("sort", `${id}.${column}.${direction}`);
    for (const details of document.querySelectorAll("#content details[open]")) query.append("open", details.id);
    if (byId("filter")?.value) query.append("filter", byId("filter").value);
    return query;
  }

  function show(query) {
    for (const name of ["method", "dataset", "compare"]) {
      const values = new Set(query.getAll(name));
      for (const box of document.querySelectorAll(`#content input[name="${name}"]`)) box.checked = values.has(box.value);
    }
    const open = new Set(query.getAll("open"));
    for (const details of document.querySelectorAll("#content details")) details.open = open.has(details.id);
    const sorts = new Map(query.getAll("sort").map((text) => [text.split(".")[0], text.split(".").slice(1).map(Number)]));
    for (const id of new Set([...sorted.keys(), ...sorts.keys()])) {
      const table = byId(id);
      const [column, direction] = sorts.get(id) ?? [0, 0];
      if (table?.tBodies && table.tBodies[0].rows[0]?.cells[column]) sort(table, column, direction);
    }
    if (byId("filter")) byId("filter").value = query.get("filter") ?? "";
    offerComparison();
    choose();
  }

  function remember() {
    const query = String(view());
    const hash = `#${place()}${query && `?${query}`}`;
    if (hash !== (location.hash || "#")) history.replaceState(null, "", hash);
  }

  // ---- Pages on single runs, and two of them compared

  let scroll = 0; // where the reader was before such a page
  let shownPage = null; // "run-3", "compare-3-7"

  const hasPage = (run) => byId(`run-page-${run}`) !== null || (live && byId(`line-${run}`) !== null);

  async function runPage(run) {
    const page = document.createElement("template");
    page.innerHTML = byId(`run-page-${run}`)?.innerHTML ?? (await (await fetch(`run/${run}`)).text());
    return page.content;
  }

  async function showPage(name, runs, anew) {
    const content = byId("content");
    if (!content.hidden) scroll = scrollY;
    shownPage = name;
    const pages = await Promise.all(runs.map(runPage));
    if (shownPage !== name) return; // the reader has gone on
    content.hidden = true;
    byId("run").hidden = false;
    const at = scrollY;
    byId("run").replaceChildren(runs.length > 1 ? compared(runs, pages) : pages[0]);
    byId("run").querySelectorAll(".plot").forEach(draw);
    document.title = byId("run").querySelector("h1").textContent;
    if (anew) scrollTo(0, at);
    else {
      scrollTo(0, 0);
      byId("run").focus({ preventScroll: true });
    }
  }

  // Names and values of a run's tables: facts, specification, environment.
  function factsOf(page) {
    const rows = [...page.querySelectorAll("table.plain:not(.clients) tbody tr")];
    return new Map(rows.map((row) => [row.cells[0].textContent, row.cells[1].textContent]));
  }

  const OWN = ["Key", "Created", "Started", "Finished", "command"]; // of each run, so that they say nothing; the last is there twice

  function compared(runs, pages) {
    const page = byId("compare-page").content.cloneNode(true);
    const facts = pages.map(factsOf);
    const names = [...new Set(facts.flatMap((one) => [...one.keys()]))];
    const differ = names.filter((name) => !OWN.includes(name) && facts[0].get(name) !== facts[1].get(name));
    page.querySelector("h1").textContent = `Runs ${runs[0]} and ${runs[1]} side by side`;
    runs.forEach((run, i) => {
      const link = document.createElement("a");
      [link.href, link.textContent] = [`#run-${run}`, pages[i].querySelector("h1").textContent];
      page.querySelectorAll("th")[i + 1].append(link);
    });
    for (const name of differ) {
      const row = page.querySelector("tbody").insertRow();
      row.append(Object.assign(document.createElement("th"), { scope: "row", textContent: name.replace("method.hyperparameters.", "") }));
      for (const one of facts) row.insertCell().textContent = one.get(name) ?? "-";
    }
    page.querySelector(".made").textContent = `All other settings are the same.`;
    const [figure] = page.querySelectorAll("figure");
    for (const title of [...pages[0].querySelectorAll("h4")].map((head) => head.textContent)) {
      const specs = pages.map((one) => specOf(one, title));
      if (!specs.every(isCurves)) continue;
      const copy = figure.cloneNode(true);
      copy.id = `compare-${runs.join("-")}-${title.toLowerCase().replaceAll(" ", "-")}`;
      copy.querySelector("h4").textContent = title;
      const plot = copy.querySelector(".plot");
      plot.setAttribute("aria-label", title);
      plot.spec = { data: specs.flatMap((spec, i) => inOneColour(spec.data, i, runs[i])), layout: { ...specs[0].layout, showlegend: true } };
      figure.before(copy);
    }
    figure.remove();
    return page;
  }

  function specOf(page, title) {
    const figure = [...page.querySelectorAll("figure")].find((one) => one.querySelector("h4").textContent === title);
    return figure && JSON.parse(figure.querySelector("script").textContent);
  }

  const isCurves = (spec) => spec?.layout.xaxis.title.text === "Round" && spec.data.every((trace) => trace.type === "scatter" && !trace.stackgroup);

  function inOneColour(traces, i, run) {
    const color = ["#0072B2", "#D55E00"][i];
    return traces.map((trace) => {
      const name = `run ${run}${trace.name && `: ${trace.name}`}`;
      const said = trace.hovertemplate && `run ${run}<br>${trace.hovertemplate}`;
      return { ...trace, name, legendgroup: name, showlegend: true, hovertemplate: said, line: { ...trace.line, color }, marker: { ...trace.marker, color } };
    });
  }

  function offerComparison() {
    const link = byId("compare");
    if (!link) return;
    const runs = checked("compare");
    const full = runs.length >= 2;
    for (const box of document.querySelectorAll('input[name="compare"]')) box.disabled = full && !box.checked;
    link.hidden = !full;
    link.previousElementSibling.hidden = full;
    link.href = `#compare-${runs.join("-")}`;
    link.textContent = `See runs ${runs.join(" and ")} side by side`;
  }

  function showContent(target) {
    const back = shownPage !== null;
    shownPage = null;
    byId("run").hidden = true;
    byId("run").replaceChildren();
    byId("content").hidden = false;
    document.title = title;
    if (back) scrollTo(0, scroll);
    else target?.scrollIntoView();
    resize();
    drawAll();
  }

  function complain(text) {
    byId("unknown").textContent = text;
    byId("unknown").hidden = !text;
  }

  // A link of the page itself has no view: the reader's stays.
  function route() {
    const query = location.hash.split("?")[1];
    if (query !== undefined && query !== String(view())) {
      show(new URLSearchParams(query));
      redrawAll();
    }
    remember();
    const name = place();
    const runs = /^(?:run-(\d+)|compare-(\d+)-(\d+))$/.exec(name)?.slice(1).filter(Boolean);
    const target = name ? byId(name) : null;
    complain("");
    if (runs?.every(hasPage)) return showPage(name, runs, false);
    if (runs) {
      const run = runs.find((one) => !hasPage(one));
      complain(byId(`line-${run}`) ? `Run ${run} has no page in this report; pflbench report --runs ${run} makes one, and pflbench runs show ${run} shows it.`
        : `There is no run ${run} here.`);
    } else if (name && !target) complain(`There is nothing called #${name} here.`);
    return showContent(target);
  }

  // ---- Live

  let edition = null;

  // Replaces what has changed; figures that have not stay as they are, with their zoom.
  function replaceContent(html) {
    const content = byId("content");
    const [at, before, focused] = [scrollY, view(), document.activeElement?.id];
    const identity = (plot) => plot.closest("figure").id + byId(plot.dataset.spec).textContent;
    const plots = new Map(drawn().filter((plot) => plot.dataset.spec).map((plot) => [identity(plot), plot]));
    content.innerHTML = html;
    for (const fresh of content.querySelectorAll(".plot")) {
      const kept = plots.get(identity(fresh));
      if (kept) fresh.replaceWith(kept);
    }
    show(before);
    if (focused && document.activeElement?.id !== focused) byId(focused)?.focus({ preventScroll: true });
    if (!content.hidden) scrollTo(0, at);
    drawAll();
  }

  async function update() {
    const found = await (await fetch("version")).text();
    if (edition !== null && found !== edition) {
      replaceContent(await (await fetch("content")).text());
      const runs = shownPage?.match(/\d+/g);
      if (runs?.every(hasPage)) await showPage(shownPage, runs, true);
    }
    edition = found;
    byId("live").textContent = "Live";
  }

  async function follow() {
    try {
      if (!document.hidden) await update();
    } catch {
      byId("live").textContent = "Not connected: pflbench serve has ended";
    }
    setTimeout(follow, POLL);
  }

  // ---- Beginning

  const title = document.title;
  root.classList.add("scripts");
  filter();
  if (stored()) root.dataset.theme = stored();
  byId("theme").hidden = false;
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    stored(root.dataset.theme);
    showTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  showTheme();
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button");
    if (button?.matches(".sort")) clickHead(button.closest("th"));
    else if (button?.id === "show-all") {
      document.querySelectorAll("#choice input").forEach((box) => { box.checked = false; });
      rechoose();
    } else if (button?.dataset.save) save(button.closest("figure").querySelector(".plot"), button.dataset.save);
  });
  document.addEventListener("input", ({ target }) => {
    if (target.id === "filter") filter();
    else if (target.name === "compare") offerComparison();
    else if (target.closest("#choice")) rechoose();
    remember();
  });
  document.addEventListener("toggle", (event) => { if (event.target.closest("#content")) remember(); }, true);
  addEventListener("hashchange", route);
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);
  route();
  if (live) follow();
  load().catch(() => false).then((done) => {
    byId("lacking").hidden = done;
    redraw();
    drawAll();
  });
})();
