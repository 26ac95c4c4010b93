// One request through time, in every run: a strip of what it did, and the story with its reasons.

const STRIPED = ["step", "behind", "preempted", "loaded"]; // in the queue
const UNTOLD = { wait: ["waiting", "behind"], prefill: ["prefill", "prefill"], decode: ["decode", "decode"] };

/** Spans to draw, one list per answer: { kind, words, colour, from, to } in seconds. */
function lanesOf(life, row, request) {
  const tracks = life.tracksOf(request);
  if (!tracks.length) return [untoldSpans(life, row)];
  if (life.run.between) return [drawn(life, life.wholeOf(request))];
  return tracks.slice(0, 16).map((track) => drawn(life, life.spansOf(track)));
}

function drawn({ run: { tick } }, spans) {
  return spans.filter(({ start, stop }) => stop > start).map(({ start, stop, state, reason }) => {
    const kind = data.states[state], { name, colour } = WORDS.states[kind];
    return { kind, name, words: name + (reason ? `: ${reasonName(reason)}` : ""), colour, from: start * tick, to: stop * tick };
  });
}

/** What the table tells, without events. */
function untoldSpans(life, row) {
  const edges = [life.arrival(row), ...["wait", "first", "whole"].map((name) => life.after(row, name))];
  if (Number.isNaN(edges[3])) return [];
  return Object.values(UNTOLD).map(([name, kind], i) => ({ kind, name, words: name, colour: WORDS.states[kind].colour, from: edges[i], to: edges[i + 1] }));
}

/** Show the life of a request below the maps; null clears it. */
function showLife(request, lives, player, chosen) {
  const place = $("life");
  place.replaceChildren();
  $("unfollow").hidden = request === null;
  $("whom").value = request === null ? "" : String(request);
  if (request === null) return;
  const known = lives.filter(({ run }) => run.first || run.system === chosen).map((life) => ({ life, row: life.rowOf(request) })).filter(({ row }) => row >= 0);
  place.append(element("h3", { text: `Request ${count(request)}` }));
  if (!known.length) return place.append(element("p", { class: "hint", text: "No run has a request of this number." }));
  const lanes = known.map(({ life, row }) => lanesOf(life, row, request));
  const spans = lanes.flat(2), times = [...known.map(({ life, row }) => life.arrival(row)), ...spans.map(({ to }) => to)];
  const from = Math.min(...times), to = Math.max(...times, from + 1e-9), totals = new Map();
  known.forEach(({ life, row }, i) => place.append(strip(life, row, lanes[i], from, to)));
  for (const span of spans) totals.set(span.kind, { ...span, sum: (totals.get(span.kind)?.sum ?? 0) + span.to - span.from });
  const alone = lanes.flat().length === 1;
  const items = data.states.filter((kind) => totals.has(kind)).map((kind) => {
    const { name, sum } = totals.get(kind);
    return element("li", {}, swatch(totals.get(kind)), alone ? `${name} ${duration(sum)}` : name);
  });
  const tales = known.map(({ life, row }) =>
    element("div", {}, ...(known.length > 1 ? [element("h4", { text: life.run.label })] : []), tale(life, row, request, player)));
  place.append(element("ul", { class: "legend" }, ...items), element("div", { class: "tales" }, ...tales));
}

function swatch({ kind, colour }) {
  const made = element("span", { class: `swatch ${STRIPED.includes(kind) ? "striped" : "solid"}`, "aria-hidden": "true" });
  made.style.setProperty("--own", colour);
  return made;
}

/** What it did, answer by answer, to scale. */
function strip(life, row, lanes, from, to) {
  const { run, requests } = life;
  const status = data.status[requests.status[row]] ?? "?", whole = requests.e2e[row] * run.tick;
  const asked = `${plural(requests.prompt_tokens[row], "prompt token")}, ${count(requests.output_tokens[row])} out`;
  const took = requests.whole[row] === NOTHING ? status : `${status} after ${duration(whole)}`;
  const section = element("div", { class: "strip" },
    element("header", {}, element("h3", { text: run.label }), element("p", { text: `${asked}; ${took}` })));
  for (const spans of lanes) {
    const said = spans.map((span) => `${span.words} ${duration(span.to - span.from)}`);
    const track = element("div", { class: "track", role: "img", "aria-label": `${run.label}: ${said.join(", ") || status}` });
    spans.forEach((span, i) => {
      const made = element("span", { class: STRIPED.includes(span.kind) ? "striped" : "solid", "data-kind": span.kind, title: said[i] });
      made.style.setProperty("--own", span.colour);
      made.style.left = `${(100 * (span.from - from)) / (to - from)}%`;
      made.style.width = `${(100 * (span.to - span.from)) / (to - from)}%`;
      track.append(made);
    });
    const now = element("b");
    now.dataset.from = from;
    now.dataset.to = to;
    track.append(now);
    section.append(track);
  }
  return section;
}

/** The story: a moment that can be gone to, and what happened then. */
function tale(life, row, request, player) {
  const { run, events } = life, list = element("dl", { class: "tale" }), end = Math.max(...systems.map((each) => each.end));
  const told = events ? storyOf(life, request).map(({ tick, text }) => ({ time: tick * run.tick, text })) : untold(life, row);
  const passed = events && run.passed[life.requests.passed[row]]; // as `sim explain` has it
  if (passed) told.unshift({ time: null, text: sentence(passed) });
  const most = 60, shown = told.length > most ? [...told.slice(0, most - 1), told.at(-1)] : told;
  if (told.length > most) shown.splice(most - 1, 0, { time: null, text: `... ${count(told.length - most)} more: see sim explain --json` });
  for (const { time, text } of shown) {
    const when = element("dt");
    if (time !== null && player) {
      const go = element("button", { type: "button", class: "link", text: moment(time, end) });
      go.addEventListener("click", () => player.seek(time));
      when.append(go);
    } else if (time !== null) when.textContent = moment(time, end);
    list.append(when, element("dd", { text: text.replace(/(\d) (?=m?s\b)/g, "$1\u00a0") }));
  }
  return list;
}

/** What the table tells of a request where no events were recorded. */
function untold(life, row) {
  const told = [{ time: life.arrival(row), text: "Arrived." }];
  if (life.requests.whole[row] !== NOTHING) {
    const moments = { wait: "Scheduled.", first: "First token.", whole: "Finished." };
    told.push(...Object.entries(moments).map(([name, text]) => ({ time: life.after(row, name), text })));
  }
  return [...told, { time: null, text: "Record the run with --record-map to see here why it waited." }];
}

/** Move the line that says where in its life the map stands. */
function markLife(time) {
  for (const mark of document.querySelectorAll(".track b")) {
    const { from, to } = mark.dataset, share = (time - from) / (to - from);
    mark.hidden = share < 0 || share > 1;
    mark.style.left = `${100 * share}%`;
  }
}
