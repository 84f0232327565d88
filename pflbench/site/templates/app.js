"use strict";
(() => {
  const root = document.documentElement;
  const live = document.body.hasAttribute("data-live");
  const byId = (id) => document.getElementById(id);
  const json = (id) => (byId(id) ? JSON.parse(byId(id).textContent) : null);
  const PRINTED = 680; // pixels: the width of a page of A4 between its margins
  const POLL = 3000; // milliseconds
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

  function themed(spec) {
    const [ink, rule, paper] = ["--ink", "--rule", "--paper"].map(colour);
    const { data, layout: given } = spec;
    const layout = { ...given, paper_bgcolor: paper, plot_bgcolor: paper, autosize: true, uirevision: "kept" };
    layout.width = before ? PRINTED : undefined;
    layout.font = { family: getComputedStyle(document.body).fontFamily, size: 13, ...given.font, color: ink };
    layout.hoverlabel = { ...given.hoverlabel, font: { ...given.hoverlabel?.font, family: layout.font.family } };
    const axes = new Set(["xaxis", "yaxis", ...Object.keys(given).filter((key) => /^[xy]axis\d*$/.test(key))]);
    for (const axis of axes) {
      const title = given[axis]?.title && { ...given[axis].title, font: { size: 14, ...given[axis].title.font } };
      layout[axis] = { ...given[axis], title, gridcolor: rule, zerolinecolor: rule, linecolor: rule, tickcolor: rule };
    }
    for (const control of ["sliders", "updatemenus"]) {
      if (given[control]) layout[control] = given[control].map((one) => ({ ...one, bgcolor: paper, bordercolor: rule, font: { color: ink } }));
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

  function draw(plot) {
    plot.spec ??= json(plot.dataset.spec);
    if (!loaded()) return;
    const { data, layout } = themed(plot.spec);
    const first = !plot.on;
    layout.height += plot.legend ?? 0;
    layout.legend = { ...layout.legend, maxheight: plot.legend };
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
    plot.style.height = `${plot.spec.layout.height + height}px`;
    draw(plot);
  }

  const drawn = () => [...document.querySelectorAll(".plot")].filter((plot) => plot.spec);
  const redraw = () => drawn().forEach(draw);
  // What is hidden does not notice that the window changes.
  const resize = () => drawn().filter((plot) => plot.on && plot.offsetWidth).forEach((plot) => Plotly.Plots.resize(plot));

  // One after the other, so that the page answers in between.
  function drawAll() {
    const next = [...document.querySelectorAll("#content .plot")].find((plot) => !plot.spec);
    if (!next || !loaded() || byId("content").hidden) return;
    draw(next);
    setTimeout(drawAll);
  }

  // Paper is white and as wide as it is: figures are drawn for it, tables that are wider made smaller.
  function beforePrint() {
    if (before) return;
    before = { theme: root.dataset.theme };
    root.dataset.theme = "light";
    root.classList.add("printing");
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
    document.querySelectorAll("#content .scroll > table").forEach((table) => { table.style.zoom = ""; });
    redraw();
    resize();
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
  }

  function filter() {
    const field = byId("filter");
    if (!field) return;
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...byId("data-runs").tBodies[0].rows];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    byId("matches").textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  }

  // ---- Pages on single runs

  let scroll = 0; // where the reader was before the page on a run
  let shownRun = null;

  const hasPage = (run) => byId(`run-page-${run}`) !== null || (live && byId(`line-${run}`) !== null);

  async function runPage(run) {
    return byId(`run-page-${run}`)?.innerHTML ?? (await fetch(`run/${run}`)).text();
  }

  async function showRun(run, anew) {
    const content = byId("content");
    if (!content.hidden) scroll = scrollY;
    shownRun = run;
    const page = await runPage(run);
    if (shownRun !== run) return; // the reader has gone on
    content.hidden = true;
    byId("run").hidden = false;
    const at = scrollY;
    byId("run").innerHTML = page;
    byId("run").querySelectorAll(".plot").forEach(draw);
    document.title = byId("run").querySelector("h1").textContent;
    if (anew) scrollTo(0, at);
    else {
      scrollTo(0, 0);
      byId("run").focus({ preventScroll: true });
    }
  }

  function showContent(target) {
    const back = shownRun !== null;
    shownRun = null;
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

  function route() {
    const hash = location.hash.slice(1);
    const run = /^run-(\d+)$/.exec(hash)?.[1];
    const target = hash ? byId(hash) : null;
    complain("");
    if (run && hasPage(run)) return showRun(run, false);
    if (run) {
      complain(byId(`line-${run}`) ? `Run ${run} has no page in this report; pflbench report --runs ${run} makes one, and pflbench runs show ${run} shows it.`
        : `There is no run ${run} here.`);
    } else if (hash && !target) complain(`There is nothing called #${hash} here.`);
    return showContent(target);
  }

  // ---- Live

  let edition = null;

  // Replaces what has changed; figures that have not stay as they are, with their zoom.
  function replaceContent(html) {
    const content = byId("content");
    const [at, wanted, focused] = [scrollY, byId("filter")?.value ?? "", document.activeElement?.id];
    const open = [...content.querySelectorAll("details[open]")].map((details) => details.id);
    const identity = (plot) => plot.closest("figure").id + byId(plot.dataset.spec).textContent;
    const plots = new Map(drawn().filter((plot) => plot.dataset.spec).map((plot) => [identity(plot), plot]));
    content.innerHTML = html;
    for (const fresh of content.querySelectorAll(".plot")) {
      const kept = plots.get(identity(fresh));
      if (kept) fresh.replaceWith(kept);
    }
    for (const id of open) if (byId(id)) byId(id).open = true;
    for (const [id, [column, direction]] of sorted) {
      if (byId(id)?.tHead.querySelectorAll("tr:last-child th")[column]) sort(byId(id), column, direction);
    }
    if (byId("filter")) byId("filter").value = wanted;
    filter();
    if (focused && document.activeElement?.id !== focused) byId(focused)?.focus({ preventScroll: true });
    if (!content.hidden) scrollTo(0, at);
    drawAll();
  }

  async function update() {
    const found = await (await fetch("version")).text();
    if (edition !== null && found !== edition) {
      replaceContent(await (await fetch("content")).text());
      if (shownRun !== null && hasPage(shownRun)) await showRun(shownRun, true);
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
    const head = event.target.closest?.("button.sort")?.closest("th");
    if (head) clickHead(head);
  });
  document.addEventListener("input", (event) => { if (event.target.id === "filter") filter(); });
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
