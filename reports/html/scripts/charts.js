// Charts, drawn by Plotly: memory and queues over time, waste, latencies. All runs on the same axes.

const charts = []; // [{ place, draw, timed }]
const TALL = 230;

/** A figure with its caption; `draw` gives [traces, layout] for the theme of now. */
function chart(parent, title, caption, draw, { timed = false, height = TALL } = {}) {
  const place = element("div", { class: "chart", role: "img", "aria-label": `${title}. ${caption}` });
  place.style.height = `${height}px`;
  parent.append(element("figure", { class: "figure" },
    element("figcaption", {}, element("h3", { text: title }), element("p", { text: caption })), place));
  charts.push({ place, draw, timed, height });
}

/** Whether a finger is what points here: it scrolls the page, so that it cannot zoom the charts. */
const touched = () => matchMedia("(pointer: coarse)").matches;

function axis(more = {}) {
  return {
    gridcolor: variable("line"), linecolor: variable("line"), zeroline: false, ticks: "", automargin: false,
    fixedrange: touched(), tickfont: { color: variable("soft"), size: 12 }, ...more,
    title: { text: more.title ?? "", font: { color: variable("soft"), size: 13 }, standoff: 8 },
  };
}

function layout(more = {}) {
  return {
    margin: { l: 60, r: 18, t: 12, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: variable("font") || "sans-serif", color: variable("ink"), size: 13 }, showlegend: false, hovermode: "x unified",
    hoverlabel: { bgcolor: variable("card"), bordercolor: variable("line"), font: { color: variable("ink"), size: 13 } },
    dragmode: touched() ? false : "zoom", ...more,
  };
}

const runColour = (place) => groupColour(systems[place].group);
const stroke = (group) => data.dashes[group].map((widths) => 2 * widths);
const runDash = (place) => stroke(systems[place].group).map((px) => `${px}px`).join(",") || "solid";

/** A piece of a run's line. */
function lineOf(group) {
  const colour = groupColour(group);
  let at = 0;
  const parts = stroke(group).map((px, i) => `${i % 2 ? "transparent" : colour} ${at}px ${(at += px)}px`);
  return parts.length ? `repeating-linear-gradient(90deg, ${parts.join(", ")})` : colour;
}
const across = (points, end) => points.map((_, place) => ((place + 0.5) * end) / points.length);
const longest = () => Math.max(...systems.map(({ end }) => end), 1e-9);

/** The kinds over time: a panel per run. */
function ledger() {
  const firsts = systems.map((_, place) => place).filter((place) => systems[place].first);
  const each = firsts.map((place) => data.charts.overTime[place]), many = each.length, between = many > 1 ? 0.26 / many : 0;
  const high = (1 - between * (many - 1)) / many, traces = [], more = { annotations: [], hoversubplots: "axis" };
  each.forEach(({ kinds, end }, place) => {
    const n = place ? place + 1 : "", top = 1 - place * (high + between);
    for (const kind of Object.keys(data.kinds)) {
      const y = kinds[kind];
      if (!y.some((value) => value > 0)) continue;
      traces.push({
        type: "scatter", mode: "lines", x: across(y, end), y, name: kind, stackgroup: `run${place}`, line: { width: 0 },
        fillcolor: kindColour(kind), fillpattern: pattern(kind), xaxis: "x", yaxis: `y${n}`, hovertemplate: "%{y:.1f} %",
      });
    }
    more[`yaxis${n}`] = axis({ domain: [Math.max(0, top - high), top], range: [0, 100], tickvals: [0, 50, 100], title: place ? "" : "% of the KV memory" });
    if (many > 1) more.annotations.push({ text: `<b>${escaped(short(systems[firsts[place]].label))}</b>`, x: 0, y: top, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false });
  });
  more.xaxis = axis({ range: [0, longest()], title: "time (s)", anchor: `y${many > 1 ? many : ""}`, showgrid: false });
  return [traces, layout({ ...more, margin: { l: 60, r: 18, t: many > 1 ? 24 : 12, b: 44 } })];
}

/** The hatch of a kind, as in the figures. */
const pattern = (kind) => (data.kinds[kind].hatched ? { shape: "/", size: 6, solidity: 0.25, fgcolor: variable("ground"), bgcolor: kindColour(kind), fillmode: "replace" } : {});

/** As much of a name as there is room for. */
const short = (text, most = Math.floor((Math.min(innerWidth, 1200) - 110) / 8)) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const roomy = () => innerWidth > 640 && !document.documentElement.classList.contains("paper");
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/** A line per run of something over time, by its name or as a function of the run. */
function line(name, unit) {
  const of = typeof name === "string" ? (found) => found[name] ?? [] : name;
  const traces = data.charts.overTime.map((found, place) => ({
    type: "scatter", mode: "lines", x: across(of(found), found.end), y: of(found), name: escaped(systems[place].label),
    line: { color: runColour(place), dash: runDash(place), width: seeds > 1 ? 1 : 1.6 }, hovertemplate: "%{y:,.4~g}",
  }));
  const few = !unit.includes("/s") && unit !== "GiB" && traces.every(({ y }) => y.every((value) => value <= 5)); // then no halves on the axis
  return [traces, layout({ xaxis: axis({ range: [0, longest()], title: "time (s)" }), yaxis: axis({ rangemode: "tozero", title: unit, ...(few ? { dtick: 1 } : {}) }) })];
}

/** A bar per run: what holds tokens, what is wasted, what is left. */
function bars() {
  const labels = data.groups.map((_, place) => `${place}`), kinds = Object.keys(data.kinds);
  const traces = kinds.map((kind) => {
    const x = data.charts.waste.map(({ percent: shares }) => shares[kind]);
    return {
      type: "bar", orientation: "h", name: kind, x, y: labels, marker: { color: kindColour(kind), pattern: pattern(kind), line: { color: variable("ground"), width: 1 } },
      text: x.map((share) => (share >= (roomy() ? 4 : 15) ? `${share.toFixed(1)} %` : "")), textposition: "inside", insidetextanchor: "middle", textangle: 0,
      textfont: { color: ["token", "external"].includes(kind) ? "#fff" : kind === "free" && dark() ? "#e9ecef" : "#10151a", size: 12 },
      hovertemplate: `${kind}: %{x:.2f} %<extra></extra>`,
    };
  }).filter(({ x }) => x.some((share) => share > 0));
  return [traces, layout({
    barmode: "stack", bargap: 0.35, hovermode: "closest", margin: { l: 12, r: 16, t: 8, b: 44 },
    xaxis: axis({ range: [0, 100], title: "% of the KV memory" }),
    yaxis: axis({ automargin: "left", autorange: "reversed", tickvals: labels, ticktext: data.groups.map((label) => escaped(short(label, roomy() ? 28 : 14))), type: "category", showgrid: false, tickfont: { color: variable("ink"), size: 13 } }),
  })];
}

let latency = Object.keys(data.charts.latency)[0];

/** A logarithmic axis of seconds: a label per decade where there are many, else at 1, 2 and 5. */
function logarithmic() {
  const { edges, words } = data.charts.latency[latency], decades = edges.length ? Math.log10(edges.at(-1) / edges[0]) : 1;
  return axis({ type: "log", title: `${words} (s)`, tickformat: "~r", ...(decades > (roomy() && innerWidth > 1000 ? 5 : 2.5) ? { dtick: 1 } : decades > 0.8 ? { dtick: "D2" } : { nticks: 6 }) });
}

/** How many requests are how slow. */
function distribution() {
  const { edges, shares } = data.charts.latency[latency];
  const traces = shares.map((share, place) => ({
    type: "scatter", mode: "lines", x: edges, y: [...share, 0], name: escaped(systems[place].label), line: { color: runColour(place), dash: runDash(place), width: seeds > 1 ? 1 : 1.8, shape: "hv" },
    fill: systems.length === 1 ? "tozeroy" : "none", fillcolor: `${runColour(place)}33`, hovertemplate: "%{y:.2f} %",
  }));
  return [traces, layout({ xaxis: logarithmic(), yaxis: axis({ rangemode: "tozero", title: "% of requests" }) })];
}

/** Which share of the requests is at least so fast. */
function cumulative() {
  const { quantiles } = data.charts.latency[latency];
  const traces = quantiles.map((x, place) => ({
    type: "scatter", mode: "lines", x: x.map((value) => value || null), y: x.map((_, i) => (100 * i) / Math.max(1, x.length - 1)),
    name: escaped(systems[place].label), line: { color: runColour(place), dash: runDash(place), width: seeds > 1 ? 1 : 1.8, shape: "hv" }, hovertemplate: "%{y:.0f} %: %{x:.4~g} s",
  }));
  return [traces, layout({
    hovermode: "closest", xaxis: logarithmic(),
    yaxis: axis({ range: [0, 101], tickvals: [0, 25, 50, 75, 100], title: "% of requests" }),
  })];
}

/** Which run has which colour. */
function series(parent) {
  const items = data.groups.map((label, place) => {
    const mark = element("i");
    mark.dataset.group = place;
    return element("li", {}, mark, seeds > 1 ? `${label}, a line per seed` : label);
  });
  if (systems.length > 1) parent.append(element("ul", { class: "series", "aria-label": "Colours of the runs" }, ...items));
}

function kindsLegend(parent, kinds) {
  parent.append(element("ul", { class: "legend" }, ...kinds.map((kind) => {
    const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
    swatch.dataset.kind = kind;
    return element("li", {}, swatch, kind);
  })));
}

/** Declare all charts; `redraw` draws them. */
function buildCharts() {
  const wide = $("over-time"), slices = "a point is the mean over one of 300 equal slices";
  const kinds = Object.keys(data.kinds).filter((kind) => data.charts.overTime.some((run) => run.kinds[kind].some((share) => share > 0)));
  const acts = [touched() ? "" : "drag to zoom, double-click to see all again", runs.some(({ map }) => map) ? `${touched() ? "tap" : "click"} to send the memory map to that moment` : ""];
  $("charts-lead").textContent = [systems.length > 1 ? "the runs share their axes" : "", acts.filter(Boolean).join("; ")].filter(Boolean).map(sentence).join(" ");
  kindsLegend(wide, kinds);
  chart(wide, "KV memory by kind", `Per cent of all slots, stacked${seeds > 1 ? ", with the first seed" : ""}; ${slices}.`, ledger, { timed: true, height: 90 + 150 * data.groups.length + (data.groups.length === 1 ? 60 : 0) });
  series(wide);
  const two = element("div", { class: "two" });
  wide.append(two);
  chart(two, "Requests in the system", `Sequences in memory, one per answer; ${slices}.`, () => line("running", "sequences"), { timed: true });
  chart(two, "Queue", `Requests that wait; ${slices}.`, () => line("waiting", "requests"), { timed: true });
  chart(two, "Throughput", "Requests finished per second, in each of 60 equal slices of the run.", () => line("throughput", "requests/s"), { timed: true });
  if (data.charts.overTime.some((found) => found.preemptions?.at(-1))) {
    chart(two, "Preemptions", "Preemptions since the start, to be computed again or swapped.", () => line("preemptions", "times"), { timed: true });
  }
  const tiers = [...new Set(data.charts.overTime.flatMap((found) => Object.keys(found.tiers ?? {})))];
  for (const tier of tiers) {
    const title = tiers.length > 1 ? `Tier below the memory: ${tier}` : "Tier below the memory";
    chart(two, title, `GiB that it holds; ${slices}.`, () => line((found) => found.tiers?.[tier] ?? [], "GiB"), { timed: true });
  }
  if (tiers.length) {
    chart(two, "Loads from the tier", "GB per second, all GPUs together, counted where a load begins.", () => line("tierLoaded", "GB/s"), { timed: true });
    chart(two, "Stores to the tier", "GB per second, all GPUs together, counted where a store begins.", () => line("tierStored", "GB/s"), { timed: true });
  }
  const saturated = data.charts.waste.map((run) => run.saturated);
  const when = saturated.every(Boolean) ? "while requests waited" : "over the whole run";
  const kept = data.wasteKinds.join(", ").replace(/, (\w+)$/, " and $1");
  chart($("waste-chart"), "Waste", `Per cent of the KV memory, mean ${when}${seeds > 1 ? `, of ${seeds} seeds` : ""}; ${kept} slots are wasted.`, bars, { height: 84 + 46 * data.groups.length });
  kindsLegend($("waste-chart"), kinds);
  for (const [name, { words }] of Object.entries(data.charts.latency)) {
    const choice = element("input", { type: "radio", name: "latency", value: name, checked: name === latency });
    choice.addEventListener("change", () => { latency = name; redraw(charts.filter(({ place }) => $("latency").contains(place))); });
    $("latency-tabs").append(element("label", {}, choice, words));
  }
  chart($("latency-charts"), "Distribution", "Per cent of the finished requests in each of 60 bins (zeros are in the first bin); the time axis is logarithmic.", distribution, { height: 300 });
  chart($("latency-charts"), "Cumulative distribution", "Per cent of the finished requests that take no longer; the time axis is logarithmic.", cumulative, { height: 300 });
  series($("latency"));
}

function recolour() {
  for (const mark of document.querySelectorAll("i[data-group]")) mark.style.background = lineOf(Number(mark.dataset.group));
  for (const swatch of document.querySelectorAll(".swatch[data-kind]")) {
    const colour = kindColour(swatch.dataset.kind), hatch = `repeating-linear-gradient(135deg, ${variable("ground")} 0 1px, ${colour} 1px 5px)`;
    swatch.style.background = data.kinds[swatch.dataset.kind].hatched ? hatch : colour;
  }
}

/** All charts at once, as wide as there is room. */
function redrawNow() {
  recolour();
  for (const { draw, place, height, drawn } of charts) {
    const [traces, shape] = draw();
    if (!drawn || !traces.some(({ x }) => x.length)) continue;
    Plotly.react(place, traces, { ...shape, height, width: place.clientWidth, autosize: false }, { displayModeBar: false, responsive: true });
  }
}

async function redraw(some = charts, player = null) {
  recolour();
  for (const each of some) {
    const [traces, shape] = each.draw();
    const first = !each.drawn;
    each.drawn = true;
    await Plotly.react(each.place, traces, { ...shape, height: each.height, autosize: true }, { displayModeBar: false, responsive: true });
    const some = traces.some(({ x }) => x.length);
    each.place.style.height = some ? `${each.height}px` : "auto";
    if (!some) each.place.replaceChildren(element("p", { class: "hint", text: "Nothing to draw: no request got this far, or none took any time." }));
    else if (first && each.timed && player) link(each, player);
    await new Promise((resolve) => setTimeout(resolve)); // let the page breathe
  }
}

/** A line at the time of the memory map, and clicks that set it. */
function link(each, player) {
  const { place } = each, cursor = element("div", { class: "cursor", "aria-hidden": "true" });
  place.append(cursor);
  place.on("plotly_click", ({ points }) => player.seek(points[0].x));
  const mark = (time) => {
    const { xaxis, _size: size } = place._fullLayout ?? {};
    if (!xaxis) return;
    const x = xaxis.l2p(time);
    cursor.hidden = x < 0 || x > xaxis._length;
    cursor.style.transform = `translateX(${xaxis._offset + x}px)`;
    cursor.style.top = `${size.t}px`;
    cursor.style.height = `${size.h}px`;
  };
  place.on("plotly_afterplot", () => mark(player.time));
  player.listeners.push(mark);
  mark(player.time);
}
