// The table of requests: sorted and filtered as numbers in columns; only the rows in sight exist.

const ROW_PX = 34, HEAD_PX = 44, SPARE = 8;

class Table {
  constructor(lives, follow) {
    this.lives = lives;
    this.follow = follow;
    this.followed = null;
    this.order = { name: "request", falling: false };
    this.place = $("table");
    this.body = element("tbody");
    systems.forEach(({ label }, place) => $("table-run").append(element("option", { value: place, text: label })));
    $("table-run-label").hidden = systems.length < 2;
    this.head();
    $("table-run").addEventListener("change", () => this.choose(Number($("table-run").value)));
    $("filter").addEventListener("input", () => this.select());
    this.place.addEventListener("scroll", () => this.render(), { passive: true });
    this.choose(0);
  }

  /** Columns: a name to filter by, a heading, its unit, how a value reads. */
  static columns = [
    ["request", "Request", "", count],
    ...(anyFleet ? [["replica", "Replica", "", count]] : []),
    ["status", "Status", "", (code) => data.status[code] ?? "?"],
    ["arrival", "Arrival", "s", (value) => value.toFixed(2)],
    ["prompt", "Prompt", "tokens", count],
    ["output", "Output", "tokens", count],
    ["queueing", "Queueing", "s", figures],
    ["ttft", "First token", "s", figures],
    ["tpot", "Per token", "ms", figures],
    ["e2e", "End to end", "s", figures],
    ["preemptions", "Preemptions", "times", count],
  ];

  head() {
    const cells = Table.columns.map(([name, heading, unit]) => {
      const button = element("button", { type: "button" }, heading, ...(unit ? [" ", element("span", { text: `(${unit})` })] : []));
      button.addEventListener("click", () => this.sort(name));
      return element("th", { scope: "col", "data-name": name }, button);
    });
    this.headings = cells;
    this.whole = element("table", {}, element("caption", { class: "hidden", text: "All requests of the run" }),
      element("thead", {}, element("tr", { "aria-rowindex": 1 }, ...cells)), this.body);
    this.place.replaceChildren(this.whole);
  }

  /** Show the requests of another run. */
  choose(place) {
    this.chosen = place;
    const parts = this.lives.filter(({ run }) => run.system === place), rows = parts.reduce((sum, { requests }) => sum + requests.request.length, 0);
    const scaled = (name, factor) => {
      const column = new Float64Array(rows);
      let at = 0;
      for (const { run, requests } of parts) for (const value of requests[name]) column[at++] = value === NOTHING ? NaN : value * factor(run);
      return column;
    };
    const tick = (run) => run.tick, one = () => 1;
    this.values = {
      request: scaled("request", one), status: scaled("status", one), arrival: scaled("arrival", tick),
      prompt: scaled("prompt_tokens", one), output: scaled("output_tokens", one),
      queueing: scaled("wait", tick), ttft: scaled("ttft", tick), e2e: scaled("e2e", tick),
      tpot: scaled("tpot_s", () => 1e3), preemptions: scaled("num_preemptions", one),
      replica: Float64Array.from(parts.flatMap(({ run, requests }) => Array(requests.request.length).fill(run.replica ?? NaN))),
    };
    this.rows = rows;
    this.place.style.height = `${Math.min(520, HEAD_PX + ROW_PX * Math.max(1, rows) + 18)}px`; // with a bar to scroll by
    this.select();
  }

  /** By this column, or the other way round. Requests without a number come last. */
  sort(name) {
    const { order } = this;
    this.order = { name, falling: order.name === name ? !order.falling : false };
    this.arrange();
  }

  /** Keep the rows that fulfil the filter. */
  select() {
    const { tests, wrong } = conditions($("filter").value);
    $("filter").setAttribute("aria-invalid", String(wrong.length > 0));
    const kept = new Uint32Array(this.rows);
    let many = 0;
    for (let row = 0; row < this.rows; row++) if (tests.every((test) => test(this.values, row))) kept[many++] = row;
    this.shown = kept.subarray(0, many);
    const all = many === this.rows ? plural(many, "request") : `${count(many)} of ${plural(this.rows, "request")}`;
    $("rows").textContent = wrong.length ? `Not understood: ${wrong.join(", ")}` : all;
    this.arrange();
  }

  arrange() {
    const { name, falling } = this.order, keys = this.values[name], sign = falling ? -1 : 1;
    this.shown.sort((one, other) => {
      const a = keys[one], b = keys[other];
      if (a === b) return one - other;
      if (a !== a) return b !== b ? one - other : 1; // NaN
      return b !== b ? -1 : a < b ? -sign : sign;
    });
    for (const heading of this.headings) {
      if (heading.dataset.name === name) heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    }
    this.whole.setAttribute("aria-rowcount", this.shown.length + 1);
    this.drawn = null;
    this.place.scrollTop = 0;
    this.render();
  }

  /** Make the rows that are in sight, between two empty ones as high as all others. */
  render() {
    const { shown, place } = this;
    const from = Math.max(0, Math.floor(place.scrollTop / ROW_PX) - SPARE);
    const to = Math.min(shown.length, from + Math.ceil(place.clientHeight / ROW_PX) + 2 * SPARE);
    if (this.drawn === `${from} ${to}`) return;
    this.drawn = `${from} ${to}`;
    const spacer = (rows) => {
      const cell = element("td", { colSpan: Table.columns.length });
      cell.style.height = `${rows * ROW_PX}px`;
      return element("tr", { class: "spacer", "aria-hidden": "true" }, cell);
    };
    const rows = Array.from(shown.subarray(from, to), (row, i) => this.row(row, from + i));
    this.body.replaceChildren(spacer(from), ...rows, spacer(shown.length - to));
  }

  row(row, place) {
    const request = this.values.request[row];
    const cells = Table.columns.slice(1).map(([name, , , write]) => {
      const value = this.values[name][row];
      return element("td", { text: Number.isNaN(value) ? "-" : write(value) });
    });
    const button = element("button", { type: "button", class: "link", text: count(request), "aria-label": `Follow request ${count(request)}` });
    button.addEventListener("click", () => this.follow(request, true, true));
    const made = element("tr", { "aria-rowindex": place + 2 }, element("td", {}, button), ...cells);
    if (request === this.followed) made.dataset.followed = "";
    return made;
  }

  mark(request) {
    this.followed = request;
    this.drawn = null;
    this.render();
  }
}

/** "e2e > 20, 17, status = rejected" -> tests of a row, and what was not understood. */
function conditions(text) {
  const names = Table.columns.map(([name]) => name), tests = [], wrong = [];
  const compare = { ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, "=": (a, b) => a === b, "!=": (a, b) => a !== b };
  for (const part of text.split(/[,;]\s+|[,;]$/).map((each) => each.trim()).filter(Boolean)) {
    const [, name, sign, value] = /^([a-z0-9]+)\s*(>=|<=|!=|=|>|<)\s*([\w.,-]+)$/i.exec(part) ?? [];
    const number = Number((value ?? part).replaceAll(",", ""));
    const column = name?.toLowerCase();
    if (column === "status" && data.status.includes(value)) tests.push((values, row) => compare[sign](values.status[row], data.status.indexOf(value)));
    else if (names.includes(column) && column !== "status" && Number.isFinite(number)) tests.push((values, row) => compare[sign](values[column][row], number));
    else if (!name && Number.isInteger(number)) tests.push((values, row) => values.request[row] === number);
    else wrong.push(part);
  }
  return { tests, wrong };
}
