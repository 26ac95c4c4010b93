// One request through time, in every run: a strip of what it did, and the story with its reasons.

/** The requests of one run, and what happened to them where events were recorded. */
class Lives {
  constructor(run, requests, events) {
    this.run = run;
    this.requests = requests;
    this.events = events;
  }

  rowOf(request) {
    const numbers = this.requests.request;
    return numbers[request] === request ? request : numbers.indexOf(request);
  }

  /** Seconds from the start of the run of what happened so long after an arrival; NaN where it never did. */
  after(row, column) {
    const ticks = this.requests[column][row];
    return ticks === NOTHING || ticks === undefined ? NaN : (this.requests.arrival[row] + ticks) * this.run.tick;
  }

  arrival(row) {
    return this.requests.arrival[row] * this.run.tick;
  }

  /** The events of a request in order. */
  eventsOf(request) {
    if (!this.events) return [];
    const { events } = this, found = [], lost = new Set();
    for (let i = lastUpTo(events.request, request - 1) + 1; events.request[i] === request; i++) {
      const number = (name) => (events[name][i] ? events[name][i] - 1 : null);
      found.push({
        time: events.time[i] * this.run.tick, sample: events.sample[i], event: data.events[events.event[i]] ?? "?",
        tokens: number("tokens"), cached: number("cached"), by: number("by"), need: number("need"),
        again: lost.has(events.sample[i]), free: number("free"), largest: number("largest"), reason: this.run.reasons[events.reason[i]],
      });
      if (found.at(-1).event === "preempt") lost.add(events.sample[i]);
    }
    return found;
  }

  /** Spans of one answer: [kind, from, to]. Without events, those that the table of requests tells. */
  spans(row, events) {
    const end = this.after(row, "whole");
    if (!events.length) {
      const first = this.after(row, "wait"), token = this.after(row, "first");
      return Number.isNaN(end) ? [] : [["wait", this.arrival(row), first], ["prefill", first, token], ["decode", token, end]];
    }
    const next = { admit: "prefill", decode: "decode", preempt: "lost", swap_out: "host", swap_in: "decode", fork: "decode" };
    const spans = [];
    let kind = "wait", since = this.arrival(row);
    for (const { event, time } of events) {
      const over = event === "finish" || event === "reject";
      if (!next[event] && !over) continue;
      spans.push([kind, since, time]);
      if (over) return spans;
      [kind, since] = [next[event], time];
    }
    return spans;
  }
}

/** What an event says, in words. */
function told(event, run) {
  const { tokens, cached, by, need, free, largest, reason } = event;
  const culprit = by === null ? "" : `: request ${count(by)} needed the room`;
  switch (event.event) {
    case "admit": return `Admitted with ${plural(tokens ?? 0, "token")}${cached ? `, ${count(cached)} of them found in the prefix cache` : ""}.`;
    case "refuse": return waits(reason, need, free, largest, run);
    case "decode": return event.again ? "All is computed again: the answer goes on." : "The prompt is computed: the first token is out.";
    case "preempt": return `Preempted${culprit}; ${plural(tokens ?? 0, "token")} must be computed again.`;
    case "swap_out": return `Swapped out to host memory, with ${plural(tokens ?? 0, "token")}${culprit}.`;
    case "swap_in": return "Back from host memory.";
    case "fork": return `Forked: shares ${plural(tokens ?? 0, "token")} with the other answers.`;
    case "copy": return `${plural(tokens ?? 0, "slot")} copied.`;
    case "finish": return "Finished.";
    case "reject": return `Rejected: ${reason}.`;
    default: return event.event;
  }
}

/** Why the head of the queue was not admitted. */
function waits(reason, need, free, largest, run) {
  if (reason === "seats") return `Waits: every seat is taken${run.seats ? ` (at most ${count(run.seats)} at once)` : ""}.`;
  const plain = {
    "token budget": "the step has no tokens left to compute",
    watermark: "what is free is kept for those who run (watermark)",
    eviction: "nobody enters in a step that evicts",
    batch: "the batch under way must end first",
    swapped: "requests in host memory come back first",
  };
  if (plain[reason]) return `Waits: ${plain[reason]}.`;
  if (reason !== "no room" || need === null) return `Waits: ${reason}.`;
  if (free !== null && largest !== null && largest < need && need <= free) {
    return `Waits: needs ${count(need)} contiguous slots, largest free extent ${count(largest)} (${count(free)} free in all).`;
  }
  return `Waits: needs ${plural(need, "slot")}, ${count(free ?? 0)} free.`;
}

const SPANS = { wait: "waits", prefill: "prompt", decode: "decodes", lost: "preempted", host: "in host memory" };

/** Show the life of a request below the maps; null clears it. */
function showLife(request, lives, player, chosen) {
  const place = $("life");
  place.replaceChildren();
  $("unfollow").hidden = request === null;
  $("whom").value = request === null ? "" : String(request);
  if (request === null) return;
  const known = lives.filter(({ run }, place) => run.first || place === chosen).map((life) => ({ life, row: life.rowOf(request) })).filter(({ row }) => row >= 0);
  place.append(element("h3", { text: `Request ${count(request)}` }));
  if (!known.length) return place.append(element("p", { class: "hint", text: "No run has a request of this number." }));
  const times = known.flatMap(({ life, row }) => [life.arrival(row), life.after(row, "whole")]).filter((t) => !Number.isNaN(t));
  const from = Math.min(...times), to = Math.max(...times, from + 1e-9);
  const tales = element("div", { class: "tales" });
  for (const { life, row } of known) {
    const events = life.eventsOf(request);
    place.append(strip(life, row, events, from, to));
    tales.append(element("div", {}, ...(known.length > 1 ? [element("h4", { text: life.run.label })] : []), tale(life, row, events, player)));
  }
  const used = new Set(place.querySelectorAll("[data-kind]").values().map((span) => span.dataset.kind));
  const items = Object.entries(SPANS).filter(([kind]) => used.has(kind)).map(([kind, words]) =>
    element("li", {}, element("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), words));
  place.append(element("ul", { class: "legend" }, ...items), tales);
}

/** What it did, answer by answer, to scale. */
function strip(life, row, events, from, to) {
  const { run, requests } = life;
  const status = data.status[requests.status[row]] ?? "?", whole = requests.whole[row] * run.tick;
  const asked = `${plural(requests.prompt_tokens[row], "prompt token")}, ${count(requests.output_tokens[row])} out`;
  const took = requests.whole[row] === NOTHING ? status : `${status} after ${duration(whole)}`;
  const section = element("div", { class: "strip" },
    element("header", {}, element("h3", { text: run.label }), element("p", { text: `${asked}; ${took}` })));
  const samples = [...new Set(events.map(({ sample }) => sample))].sort((a, b) => a - b).slice(0, 16);
  const fork = events.findIndex(({ event }) => event === "fork"); // before it, all answers are one
  const share = (time) => `${(100 * (time - from)) / (to - from)}%`;
  for (const sample of samples.length ? samples : [0]) {
    const spans = life.spans(row, events.filter((event, i) => event.sample === sample || i < fork));
    const words = spans.map(([kind, a, b]) => `${SPANS[kind]} ${duration(b - a)}`).join(", ");
    const track = element("div", { class: "track", role: "img", "aria-label": `${run.label}: ${words || status}` });
    for (const [kind, a, b] of spans) {
      const span = element("span", { class: kind, "data-kind": kind, title: `${SPANS[kind]} ${duration(b - a)}` });
      span.style.left = share(a);
      span.style.width = `${(100 * (b - a)) / (to - from)}%`;
      track.append(span);
    }
    const now = element("b");
    now.dataset.from = from;
    now.dataset.to = to;
    track.append(now);
    section.append(track);
  }
  return section;
}

/** The story: a moment that can be gone to, and what happened then. */
function tale(life, row, events, player) {
  const { run } = life, list = element("dl", { class: "tale" }), end = Math.max(...runs.map((each) => each.end));
  const several = events.some(({ sample }) => sample > 0);
  const queued = life.after(row, "wait") - life.arrival(row);
  const arrived = {
    time: life.arrival(row),
    text: `Arrived, with a prompt of ${plural(life.requests.prompt_tokens[row], "token")}${queued > 0 ? `; then ${duration(queued)} in the queue` : ""}.`,
  };
  const happened = [];
  for (const event of events) {
    const same = happened.findLast(({ time, said }) => time === event.time && said === told(event, run));
    if (same) same.samples.push(event.sample);
    else happened.push({ time: event.time, said: told(event, run), samples: [event.sample] });
  }
  const fork = events.find(({ event }) => event === "fork")?.time ?? Infinity;
  for (const each of happened) {
    const who = several && each.time >= fork ? `Answer${each.samples.length > 1 ? "s" : ""} ${each.samples.sort((a, b) => a - b).join(", ")}: ` : "";
    each.text = who + each.said;
  }
  if (!events.length && life.requests.whole[row] !== NOTHING) {
    happened.push({ time: life.after(row, "wait"), text: "Scheduled." }, { time: life.after(row, "first"), text: "First token." },
      { time: life.after(row, "whole"), text: "Finished." });
    if (!life.events) happened.push({ time: null, text: "Record the run with --record-map to see here why it waited." });
  }
  const most = 60, shown = happened.length > most ? [...happened.slice(0, most - 1), happened.at(-1)] : happened;
  if (happened.length > most) shown.splice(most - 1, 0, { time: null, text: `... ${count(happened.length - most)} more ...` });
  for (const { time, text } of [arrived, ...shown]) {
    const when = element("dt");
    if (time !== null) {
      const go = element("button", { type: "button", class: "link", text: moment(time, end) });
      go.addEventListener("click", () => player?.seek(time));
      if (player) when.append(go);
      else when.textContent = moment(time, end);
    }
    list.append(when, element("dd", { text }));
  }
  return list;
}

/** Move the line that says where in its life the map stands. */
function markLife(time) {
  for (const mark of document.querySelectorAll(".track b")) {
    const { from, to } = mark.dataset, share = (time - from) / (to - from);
    mark.hidden = share < 0 || share > 1;
    mark.style.left = `${100 * share}%`;
  }
}
