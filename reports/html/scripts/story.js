// What happened to a track, a line each, in the words of reports/lives/words.py: what `sim explain` tells.
//
// The rules are those of reports/lives/lines.py; a test compares the lines of both.

const WORDS = data.words;
const EACH = 3; // spells at the head of the queue that get a line of their own; more are told together

/** A template with its names filled in. */
const filled = (template, values) =>
  template.replace(/\{(\w+)\}/g, (_, name) => (typeof values[name] === "number" ? count(values[name]) : values[name]));
const said = (name, values = {}) => filled(WORDS.lines[name], values);
const moreOf = (number, word) => (number === 1 ? `one more ${word}` : `${count(number)} more ${word}s`);
const reasonName = (reason) => WORDS.shortReasons[reason] ?? reason;
const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

/** Why the head of the queue was not admitted, with the numbers of the event. */
function reasonText(reason, { need, free, largest }, { max_num_seqs: seats, max_num_batched_tokens: budget }) {
  let template = WORDS.reasons[reason] ?? reason;
  if (reason === "no room" && ![need, free, largest].includes(null)) {
    if (need <= largest) template = WORDS.notEnoughLeft;
    else if (need <= free) template = WORDS.inPieces;
  }
  if (seats === null) template = template.replace("all {seats} seats", "all seats");
  if (budget === null) template = template.replace("the token budget of {budget}", "the token budget");
  return filled(template, { need, free, largest, seats, budget });
}

/** What happened, with the numbers of the event and what else to fill in; `again`: after a preemption. */
function eventText(what, event, again, more) {
  const tokens = event.tokens ?? 0, { happened, byItself, displaced } = WORDS;
  let template = (again ? happened[`${what} again`] : null) ?? happened[what];
  if (event.by !== null && event.by === event.request) template = byItself[what] ?? template;
  else if (event.reason) template = displaced[what] ?? template;
  if (event.cached) template += happened.cached;
  const by = event.by === null ? "another request" : `request ${count(event.by)}`;
  return filled(template, { ...event, tokens: plural(tokens, "token"), slots: plural(tokens, "slot"), by, ...more });
}

/** Neighbours of equal key, together. */
function grouped(items, key) {
  const found = [];
  for (const item of items) {
    if (found.length && found.at(-1).key === key(item)) found.at(-1).items.push(item);
    else found.push({ key: key(item), items: [item] });
  }
  return found;
}

class Teller {
  constructor(life, track) {
    this.life = life;
    this.track = track;
    this.request = life.spans.request[track];
    this.home = life.homeOf(this.request);
    this.engine = life.run.engine;
    this.all = life.eventsOfTrack(track);
    this.over = life.againOf(track) < (this.home.requests.resent?.[this.home.rowOf(this.request)] ?? 0); // it starts over
    this.spans = life.spansOf(track, this.all);
  }

  time(ticks) {
    return duration(ticks / Math.round(1 / this.life.run.tick)); // to the last bit, as Python divides
  }

  lasted(spans) {
    return this.time(spans.reduce((sum, { start, stop }) => sum + stop - start, 0));
  }

  /** The lines in order: { tick, event, text }. */
  lines() {
    const arrival = this.spans[0].start;
    const told = [{ tick: arrival, row: -1, event: "arrive", text: this.arrived(arrival) }, ...this.happened()];
    for (const { key, items } of grouped(this.spans, ({ state }) => WAITING.includes(state))) if (key) told.push(...this.queue(items));
    return told.sort((one, other) => one.tick - other.tick || one.row - other.row);
  }

  /** The events of the track, those before a fork and of its own forks included. */
  rows() {
    const { life, track, all } = this, parent = life.parentOf(track);
    const of = (each) => all.filter(({ sample, event }) => sample === life.spans.sample[each] && !["reject", "lost", "send"].includes(event));
    const rows = of(track), opening = rows[0]?.row;
    if (parent !== null) rows.push(...of(parent).filter(({ row }) => row < opening));
    else if (!life.moves) {
      const others = life.tracksOf(this.request).filter((each) => each !== track && life.parentOf(each) === track);
      rows.push(...others.map((each) => of(each)[0]));
    }
    if (life.rejected(track)) rows.push(...all.filter(({ event }) => event === "reject"));
    return rows.sort((one, other) => one.row - other.row);
  }

  happened() {
    const { life, track } = this, rows = this.rows().filter(({ event }) => event !== "refuse");
    const own = life.spans.sample[track], alone = life.parentOf(track) === null;
    const beam = alone && !life.rejected(track) ? rows.filter(({ event, sample }) => event === "fork" && sample === own) : [];
    const key = ({ event, tick, row, sample }) => {
      if (event === "copy") return beam.length ? "survivors" : "copy";
      if (event !== "fork") return `${event} ${event === "finish" ? tick : -row}`;
      if (beam.length) return tick === beam[0].tick ? "candidates" : "survivors";
      return sample === own ? "forked" : `fork ${tick}`;
    };
    let evicted = false, decoded = false;
    return grouped(rows, key).map(({ key, items }) => {
      const [{ tick, row, event }] = items;
      const line = { tick, row, event, text: this.text(key.split(" ")[0], items, event === "admit" ? evicted : decoded) };
      evicted ||= event === "preempt";
      decoded ||= ["decode", "move_in"].includes(event);
      return line;
    });
  }

  /** What events that are told together did, and what the tables add to it. */
  text(what, items, again) {
    const forks = items.filter(({ event }) => event === "fork").length, copies = items.filter(({ event }) => event === "copy");
    const event = { ...items[0] };
    if (what === "copy" || what === "survivors") {
      event.tokens = copies.reduce((sum, { tokens }) => sum + tokens, 0);
      if (!forks) what = "copy";
    }
    const more = {
      answers: moreOf(forks, "answer"), candidates: moreOf(forks, "candidate"),
      times: forks === 1 ? "once" : `${count(forks)} times`, until: this.time(items.at(-1).tick),
    };
    return eventText(what, event, again, more) + this.more(what, copies.length, event, again);
  }

  more(what, copies, event, again) {
    const { requests, run } = this.home, row = this.home.rowOf(this.request), allocator = this.engine.allocator;
    const whole = requests.whole[row], first = requests.first[row];
    if (copies) {
      const why = ["paged", "dynamic"].includes(allocator) ? said(allocator) : "";
      return why + (what === "copy" && copies > 1 ? said("steps", { steps: copies }) : "");
    }
    if (what === "admit" && !again && event.tokens < requests.prompt_tokens[row]) return said("whole prompt", { prompt: requests.prompt_tokens[row] });
    if (this.over) return "";
    if (what === "decode" && !again && first !== NOTHING) return said("ttft", { ttft: this.time(requests.ttft[row]) });
    if (what === "finish" && whole !== NOTHING && (run.between || this.life.ends[this.track] === this.life.ends[this.last()])) {
      return said("e2e", { e2e: this.time(requests.e2e[row]), tpot: duration(requests.tpot_s[row]), normalized: duration(requests.normalized_s_per_token[row]) });
    }
    return "";
  }

  /** The track of its life that ends last. */
  last() {
    return this.life.lastOf(this.track);
  }

  arrived(arrival) {
    const { life, request } = this, tracks = life.waitingAt(arrival, request);
    const others = new Set(tracks.map((track) => life.spans.request[track])).size;
    if (!others) return said("alone");
    const text = said([null, "fcfs"].includes(this.engine.policy) ? "behind" : "among", { others: plural(others, "other") });
    const enters = tracks.map((track) => life.enters(track, arrival)), own = life.enters(this.track, arrival);
    const last = enters.reduce((most, when) => (when === null || when > most ? when ?? Infinity : most), 0);
    return text + (own !== null && last <= own ? said(others === 1 ? "entered" : "all entered", { time: this.time(last) }) : "");
  }

  /** Lines on one stay in the queue: when it was first in it, and why it was not admitted. */
  queue(stay) {
    const spell = stay.filter(({ start, stop }) => stop > start), heads = spell.filter(({ reason }) => reason);
    if (!spell.length) return [];
    const last = (kind) => this.all.findLast(({ event, tick }) => event === kind && tick === stay[0].start);
    if (heads.length > EACH || spell[0].state === STATE.preempted) {
      const left = last("set_aside") ?? last("preempt") ?? last("loaded"); // who is set aside may be preempted in the same step
      return [{ tick: spell[0].start, row: left?.row ?? -1, event: "refuse", text: this.summed(spell) }];
    }
    const told = heads.map((span) => ({
      tick: span.start, row: span.event.row, event: "refuse", text: said("head", { time: this.lasted([span]), why: this.why(span) }),
    }));
    if (spell[0].state === STATE.loaded && !spell[0].reason) {
      told.push({ tick: spell[0].start, row: last("loaded")?.row ?? -1, event: "behind", text: said("waited", { time: this.lasted([spell[0]]) }) });
    }
    for (const span of spell.slice(1)) {
      if (!span.reason && heads.length && span.start > heads[0].start) {
        told.push({ tick: span.start, row: -1, event: "behind", text: said("again", { time: this.lasted([span]) }) });
      }
    }
    return told;
  }

  /** A stay in the queue in one line: how long for which reason, and what was first said of it. */
  summed(spell) {
    const reasons = [...new Set(spell.map(({ reason }) => reason))];
    let each = reasons.map((reason) => {
      const alike = spell.filter((span) => span.reason === reason);
      const detail = ["no room", "watermark"].includes(reason) ? ` (${this.why(alike[0])})` : "";
      return said("part", { time: this.lasted(alike), reason: reason ? reasonName(reason) : WORDS.lines.others }) + detail;
    });
    if (each.length === 1) each = [spell[0].reason ? this.why(spell[0]) : WORDS.lines.others];
    return said("queue", { time: this.lasted(spell), parts: each.join(", ") });
  }

  why({ reason, event, start }) {
    return reasonText(reason, event, this.engine) + (reason === "token budget" ? this.spentOn(start) : "");
  }

  /** Whose prompts, and how many decodes, took the tokens of the step that starts now. */
  spentOn(now) {
    const { prompts, decodes } = this.life.computedAt(now), on = [];
    if (prompts.length) {
      const requests = prompts.length <= EACH ? prompts.join(", ") : `${count(prompts.length)} requests`;
      on.push(said(prompts.length === 1 ? "prompt" : "prompts", { requests }));
    }
    if (decodes && String(this.engine.scheduler).startsWith("vllm-v1")) on.push(plural(decodes, "decode"));
    return on.length ? said("spent", { on: on.join(", ") }) : "";
  }
}

/** All that happened to a request: [{ tick, text }]; of several answers, which of them where not all alike. */
function storyOf(life, request) {
  if (life.run.between) return storyOfStays(life, request);
  const tracks = life.tracksOf(request), told = new Map();
  for (const track of tracks) {
    for (const line of new Teller(life, track).lines()) {
      if (line.text.startsWith(WORDS.happened.forked.split("{")[0])) continue; // its parent says so
      const key = `${line.tick} ${line.text}`;
      if (!told.has(key)) told.set(key, { ...line, samples: [] });
      told.get(key).samples.push(life.spans.sample[track]);
    }
  }
  return [...told.values()].sort((one, other) => one.tick - other.tick || one.row - other.row).map(({ tick, event, text, samples }) => {
    const all = samples.length === tracks.length || event === "fork";
    const whose = all ? "" : `Answer${samples.length > 1 ? "s" : ""} ${samples.sort((a, b) => a - b).join(", ")}: `;
    return { tick, event, text: whose ? `${whose}${text}.` : sentence(text) };
  });
}

/** The same of a request that was on several replicas, one after the other: reports/lives/apart.py has the rules. */
function storyOfStays(life, request) {
  const lived = life.livesOf(request), told = [];
  lived.forEach((stays, again) => {
    const sent = life.happenedTo(request, "send", again), own = linesOfStays(life, request, stays, again === lived.length - 1);
    if (!again && sent && own[0].tick === sent.tick && !(life.run.between === "handed" && stays.length > 1)) {
      const home = life.homeOf(request), arrival = home.requests.arrival[home.rowOf(request)];
      if (arrival < sent.tick) told.push({ tick: arrival, event: "down", text: goesOn(life, "none at first", sent, arrival) });
    }
    told.push(...(again && !sent ? own.slice(1) : own));
    const died = life.happenedTo(request, "lost", again);
    if (!died) return;
    const next = life.happenedTo(request, "send", again + 1), tokens = plural(died.tokens, "token");
    const gone = said(died.tokens ? "died" : "died empty", { replica: died.reason, tokens });
    const goes = next ? goesOn(life, next.tick === died.tick ? "sent again" : "none alive", next, died.tick) : "";
    told.push({ tick: died.tick, event: "lost", text: gone + goes });
  });
  return told.map(({ tick, event, text }) => ({ tick, event, text: sentence(text) }));
}

/** Where the router sent a request late, and how long no replica was alive. */
const goesOn = (life, how, { replica, tick }, since) => said(how, { replica, time: duration((tick - since) / Math.round(1 / life.run.tick)) });

/** The lines of one life of a request; `last`: the one that was answered. */
function linesOfStays(life, request, lived, last) {
  const stays = lived.map(({ life: there, track }) => ({ replica: there.run.label, lines: new Teller(there, track).lines() }));
  const [first, ...later] = stays, handed = life.run.between === "handed";
  const told = later.length && handed ? first.lines.filter(({ event }) => event !== "decode") : [...first.lines];
  for (const { replica, lines } of later) {
    const [{ tick }] = lines;
    if (!handed) {
      told.push({ tick, event: "move_in", text: said("moved", { replica }) }, ...lines.slice(2));
      continue;
    }
    const reading = last ? read(life, request, replica) : null;
    const answered = reading ? [reading, ...lines.slice(1).filter(({ event }) => event !== "loaded")].sort((one, other) => one.tick - other.tick) : lines.slice(1);
    told.push({ tick, event: "arrive", text: said("comes", { replica }) }, ...answered);
  }
  return told;
}

/** When a decode replica had read a prompt; null: it never did. */
function read(life, request, replica) {
  const home = life.homeOf(request), { requests, run } = home, row = home.rowOf(request);
  const end = requests.read_end[row];
  if (end === NOTHING) return null;
  const time = duration((end - requests.read_begin[row]) / Math.round(1 / run.tick));
  return { tick: requests.arrival[row] + end, event: "read", text: said("read", { replica, time }) };
}
