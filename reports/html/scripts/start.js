// Put the page together: words first, then the maps, the table, and last the charts.

function words() {
  $("title").textContent = data.title;
  $("answer").textContent = data.answer;
  $("facts").append(...data.facts.map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: value }))));
  const notes = $("notes");
  notes.hidden = !data.notes.length;
  notes.firstElementChild.textContent = `${plural(data.notes.length, "note")} on these numbers`;
  notes.lastElementChild.append(...data.notes.map((text) => element("li", { text })));
  const sections = [...document.querySelectorAll("main > section")].filter(({ id }) => id !== "fleet" || anyFleet);
  $("sections").append(...sections.map(({ id }) => element("a", { href: `#${id}`, text: $(`${id}-title`).textContent })));
  $("kinds").append(...Object.entries(data.kinds).map(([name, { meaning }]) =>
    element("div", {}, element("dt", { text: name }), element("dd", { text: meaning }))));
  $("made").textContent = `Simulated by kvsim ${data.version}. Every slot of the KV memory is one of these ${Object.keys(data.kinds).length === 6 ? "six" : "seven"} kinds at every instant.`;
}

function numbers() {
  const table = document.querySelector(".numbers");
  const { columns, rows } = data.numbers, several = columns.length > 1;
  table.classList.toggle("one", !several);
  table.caption.textContent = [!several ? "The run in numbers" : data.numbers.ranked ? "A column per run; the best of a row in green" : "A column per run; none is marked as the best, as they did not serve the same requests on one clock", anyFleet ? "of a fleet, requests at once and shares of the KV memory are means per replica, the rest is of all replicas" : "", seeds > 1 ? `means of ${seeds} seeds ± half of their 95 % confidence interval` : ""].filter(Boolean).join("; ") + ".";
  table.tHead.append(element("tr", {}, element("th", {}, element("span", { class: "hidden", text: "Number" })),
    ...columns.map((text) => element("th", { scope: "col", class: text.length <= 16 ? "short" : "", text }))));
  table.tBodies[0].append(...rows.map(({ name, texts, best }) => element("tr", {},
    element("th", { scope: "row", text: name }),
    ...texts.map((text, i) => element("td", { class: best[i] ? "best" : "", text: unbroken(text) }, ...(best[i] ? [element("span", { class: "hidden", text: " (best)" })] : []))))));
}

/** How the runs differ beyond their seeds' spread. */
function differences() {
  const place = $("differences");
  place.hidden = !data.differences.length;
  place.firstElementChild.textContent = `Of ${seeds} seeds, paired, with 95 % confidence`;
  place.lastElementChild.append(...data.differences.map((text) => element("li", { text })));
}

async function mapsOf() {
  const maps = [];
  for (const [place, run] of runs.entries()) {
    if (run.map) maps.push({ place, run, arena: new Arena(run.arena, await columnsOf(`map-${place}`, run.map)) });
  }
  const missing = systems.filter(({ first }, place) => first && !runs.some(({ system, map }) => system === place && map));
  const which = maps.length ? ` of ${missing.map(({ label }) => label).join(", ")}` : "";
  const notice = $("map-missing");
  notice.hidden = !missing.length;
  notice.textContent = `No map was recorded${which}: run again with --record-map to see who holds which slot.`;
  $("player").hidden = $("map-lead").hidden = !maps.length;
  return maps;
}

const ABREAST = 5; // runs in a table as wide as paper

/** A table cannot scroll on paper: its columns in several tables, if they are many; or as it was. */
function cutNumbers(paper) {
  const table = document.querySelector(".numbers"), columns = data.numbers.columns.length;
  table.classList.toggle("cut", paper && columns > ABREAST);
  while (table.nextElementSibling) table.nextElementSibling.remove();
  for (let from = 0; paper && columns > ABREAST && from < columns; from += ABREAST) {
    const part = table.cloneNode(true);
    part.classList.remove("cut");
    if (from) part.caption.remove();
    for (const row of part.rows) for (const cell of [...row.cells].filter((_, i) => i && (i <= from || i > from + ABREAST))) cell.remove();
    table.parentElement.append(part);
  }
}

/** Light, as wide as paper, and at once: nothing is drawn later while a browser prints. */
function forPaper(player) {
  document.documentElement.dataset.theme = "light";
  document.documentElement.classList.add("paper");
  player?.layOut();
  player?.restyle();
  player?.paint();
  repaintFleets();
  redrawNow();
  cutNumbers(true);
  $("notes").open = true;
}

async function start() {
  words();
  numbers();
  differences();
  let player = null, table = null;
  const lives = [];
  const follow = (request, find = false, look = false) => {
    player?.track(request, find);
    showLife(request, lives, player, table?.chosen);
    if (player) markLife(player.time);
    table?.mark(request);
    if (look) $(player ? "memory" : "life").scrollIntoView();
  };
  const maps = await mapsOf();
  for (const [place, run] of runs.entries()) {
    const requests = await columnsOf(`requests-${place}`, run.requests);
    const [events, spans] = run.events ? [await columnsOf(`events-${place}`, run.events), await columnsOf(`spans-${place}`, run.spans)] : [null, null];
    lives.push(new Lives(run, requests, events, spans, lives));
  }
  if (maps.length) player = new Player(maps, follow);
  player?.listeners.push(markLife);
  table = new Table(lives, follow);
  buildFleets((replica, look) => {
    player?.choose(replica);
    if (look && player) $("memory").scrollIntoView();
  });
  buildCharts();
  const library = element("script", { text: new TextDecoder().decode(await bytesOf("plotly")) });
  document.head.append(library);
  await redraw(charts, player);
  const restyle = () => {
    player?.restyle();
    repaintFleets();
    return redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  addEventListener("beforeprint", () => forPaper(player));
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.theme;
    document.documentElement.classList.remove("paper");
    cutNumbers(false);
    player?.layOut();
    restyle();
  });
  window.kvsim = { player, table, lives, Teller, storyOf, figures }; // for whoever looks behind the page
  document.documentElement.dataset.ready = "";
}

start().catch((error) => {
  $("failure").hidden = false;
  $("failure").textContent = `This report cannot be shown: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
