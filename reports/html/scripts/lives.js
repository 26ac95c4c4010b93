// The lives of all requests of one run: tracks, their spans and their events, as reports/lives/spans.py has them.
//
// A track is a request, or one of several answers to it; all times are whole ticks of the run. Where a request may
// be on several replicas (`run.between` says what it does between two stays), each replica has a track per stay;
// if replicas died, `resent` of a track or an event is how often its request had been sent again by then.

const STATE = Object.fromEntries(data.states.map((name, place) => [name, place]));
const WAITING = ["step", "behind", "head", "preempted", "loaded"].map((name) => STATE[name]);
const AMOUNTS = ["tokens", "cached", "by", "need", "free", "largest"];

class Lives {
  constructor(run, requests, events, spans, all) {
    Object.assign(this, { run, requests, events, spans, all });
    if (spans) this.first = sums(spans.many);
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

  /** The events of a request in order; numbers that do not apply are null. */
  eventsOf(request) {
    const { events, run } = this, found = [];
    if (!events) return found;
    for (let row = lastUpTo(events.request, request - 1) + 1; events.request[row] === request; row++) {
      const amounts = AMOUNTS.map((name) => [name, events[name][row] ? events[name][row] - 1 : null]);
      found.push({
        row, request, tick: events.time[row], sample: events.sample[row], resent: events.resent?.[row] ?? 0, event: data.events[events.event[row]],
        reason: run.reasons[events.reason[row]], ...Object.fromEntries(amounts),
      });
    }
    return found;
  }

  /** How often the request of a track had been sent again. */
  againOf(track) {
    return this.spans.resent?.[track] ?? 0;
  }

  /** The events of one life of a request: all of them, unless its replica died. */
  eventsOfTrack(track) {
    return this.eventsOf(this.spans.request[track]).filter(({ resent }) => resent === this.againOf(track));
  }

  /** Whether requests are on several replicas for other reasons than deaths. */
  get moves() {
    return this.run.between && this.run.between !== "down";
  }

  /** The tracks of a request. */
  tracksOf(request) {
    const found = [], { spans } = this;
    if (spans) for (let track = lastUpTo(spans.request, request - 1) + 1; spans.request[track] === request; track++) found.push(track);
    return found;
  }

  /** Where a request was answered: there it has its row. */
  homeOf(request) {
    if (!this.run.between) return this;
    return this.all.find((life) => life.run.system === this.run.system && life.rowOf(request) >= 0) ?? this;
  }

  /** The replicas of its run. */
  get replicas() {
    return this.all.filter(({ run }) => run.system === this.run.system);
  }

  /** The stays of each life of a request on all replicas of the run, in order: [[{ life, track }]]. */
  livesOf(request) {
    const found = [], number = ({ life, track }) => life.spans.sample[track], start = ({ life, track }) => life.startAt(track, life.first[track]);
    for (const life of this.replicas) for (const track of life.tracksOf(request)) (found[life.againOf(track)] ??= []).push({ life, track });
    const order = (one, other) => number(one) - number(other) || start(one) - start(other);
    return found.map((stays) => (this.moves ? stays.sort(order) : [{ life: stays[0].life, track: stays[0].life.lastOf(stays[0].track) }]));
  }

  /** The event of a request on any replica, sent again so often: { replica, reason, tick, tokens }; the first of its kind. */
  happenedTo(request, kind, again) {
    const found = this.replicas.flatMap((life) => life.eventsOf(request).filter(({ event, resent }) => event === kind && resent === again).map((event) => ({ ...event, replica: life.run.label })));
    return found.sort((one, other) => one.tick - other.tick)[0];
  }

  /** All spans of a request, and what lies between its stays, and between its lives. */
  wholeOf(request) {
    const found = [], between = STATE[this.run.between], home = this.homeOf(request);
    const fill = (stop, state) => {
      const start = found.length ? found.at(-1).stop : home.requests.arrival[home.rowOf(request)];
      if (found.length ? start <= stop : start < stop) found.push({ start, stop, state, event: null, reason: "" });
    };
    this.livesOf(request).forEach((stays, again) => {
      stays.forEach(({ life, track }, place) => {
        const spans = life.spansOf(track);
        if (place) fill(spans[0].start, between);
        else if (this.spans.resent) fill(spans[0].start, STATE.down);
        found.push(...spans);
      });
      const died = this.spans.resent && this.happenedTo(request, "lost", again);
      if (died) fill(died.tick, between);
    });
    return found;
  }

  /** The track that ends last of one life of a request: E2E is its own. */
  lastOf(track) {
    const { request } = this.spans, again = this.againOf(track);
    const better = (one, other) => this.ends[other] > this.ends[one] || (this.ends[other] === this.ends[one] && this.rejected(one) && !this.rejected(other));
    return this.tracksOf(request[track]).filter((each) => this.againOf(each) === again).reduce((one, other) => (better(one, other) ? other : one));
  }

  /** The track that this one was forked from: the last of its request. Null if it came by itself. */
  parentOf(track) {
    if (this.moves) return null;
    const { request } = this.spans, same = (other) => request[other] === request[track] && this.againOf(other) === this.againOf(track);
    if (!same(track + 1)) return null;
    let last = track;
    while (same(last + 1)) last++;
    return last;
  }

  /** When each track ends: its last token, its rejection, its replica's death, or when it leaves for another replica. */
  get ends() {
    if (this.known) return this.known;
    const { events, spans } = this, many = spans.request.length;
    const found = new Float64Array(many).fill(-1), cuts = ["reject", "lost"].map((name) => data.events.indexOf(name));
    const again = (row) => events.resent?.[row] ?? 0;
    const leaves = ["finish", "hand_over", "move_out"].map((name) => data.events.indexOf(name));
    this.cut = new Uint8Array(many); // which tracks were rejected, or lost
    for (let row = 0, track = 0; row < events.request.length; row++) {
      while (spans.request[track] < events.request[row]) track++;
      if (!leaves.includes(events.event[row])) continue;
      let own = track;
      while (spans.sample[own] !== events.sample[row] || this.againOf(own) !== again(row)) own++;
      found[own] = events.time[row];
    }
    for (let row = 0, track = 0; row < events.request.length; row++) {
      while (spans.request[track] < events.request[row]) track++;
      if (!cuts.includes(events.event[row])) continue;
      for (let own = track; spans.request[own] === events.request[row]; own++) {
        if (this.againOf(own) !== again(row)) continue;
        if (found[own] >= 0 && !this.cut[own]) continue;
        found[own] = events.time[row];
        this.cut[own] = 1;
      }
    }
    return (this.known = found);
  }

  rejected(track) {
    return this.ends && this.cut[track] === 1;
  }

  stateAt(span) {
    return this.spans.state[span] % data.said;
  }

  /** When a span of a track begins: the first of most at the arrival. */
  startAt(track, span) {
    const arrives = span === this.first[track] && !this.run.between && this.parentOf(track) === null;
    return arrives ? this.requests.arrival[this.spans.request[track]] : this.spans.start[span];
  }

  stopAt(track, span) {
    return span + 1 < this.first[track + 1] ? this.spans.start[span + 1] : this.ends[track];
  }

  /** The spans of a track, with those that it shared before its fork; `event` is the refusal that begins one. */
  spansOf(track, events = this.eventsOfTrack(track)) {
    const refusals = events.filter(({ event, sample }) => event === "refuse" && sample === this.spans.sample[track]), found = [];
    for (let span = this.first[track]; span < this.first[track + 1]; span++) {
      const event = this.spans.state[span] >= data.said ? refusals.shift() : null;
      found.push({ start: this.startAt(track, span), stop: this.stopAt(track, span), state: this.stateAt(span), event, reason: event?.reason ?? "" });
    }
    const parent = this.parentOf(track);
    if (parent === null) return found;
    const born = found[0].start;
    return [...this.spansOf(parent, events).filter(({ start, stop }) => stop <= born && start < born), ...found];
  }

  /** When a track is next in memory, or null. */
  enters(track, since) {
    const parent = this.parentOf(track), born = this.spans.start[this.first[track]];
    for (const own of parent === null ? [track] : [parent, track]) {
      for (let span = this.first[own]; span < this.first[own + 1]; span++) {
        const start = this.startAt(own, span), state = this.stateAt(span);
        if (own !== track && start >= born) break;
        if ([STATE.loading, STATE.prefill, STATE.recompute].includes(state) && start >= since) return start;
      }
    }
    return null;
  }

  /** The tracks of others that were in the queue when a request arrived. */
  waitingAt(arrival, request) {
    const { first, spans, ends } = this, found = [];
    for (let track = 0; track < ends.length; track++) {
      if (spans.request[track] === request) continue;
      for (let span = first[track]; span < first[track + 1]; span++) {
        const start = this.startAt(track, span), opens = span === first[track];
        if (start > arrival) break;
        if (!WAITING.includes(this.stateAt(span)) || this.stopAt(track, span) < arrival) continue;
        if (start === arrival && !(opens && spans.request[track] < request)) continue;
        if (opens && this.cut[track] && ends[track] === start) continue; // rejected at once
        found.push(track);
        break;
      }
    }
    return found;
  }

  /** The requests whose prompts are computed at a time, and how many tracks decode. */
  computedAt(now) {
    const prompts = new Set();
    let decodes = 0;
    for (let track = 0; track < this.ends.length; track++) {
      for (let span = this.first[track]; span < this.first[track + 1] && this.startAt(track, span) <= now; span++) {
        if (this.stopAt(track, span) <= now) continue;
        const state = this.stateAt(span);
        if (state === STATE.prefill || state === STATE.recompute) prompts.add(this.spans.request[track]);
        if (state === STATE.decode) decodes++;
      }
    }
    return { prompts: [...prompts], decodes };
  }
}
