// The memory of one run at any recorded instant: replay of what changed, with frames to start from.

const EVERY = 16; // instants between two frames

class Arena {
  constructor(about, columns) {
    const { gap, size, owner, empty, cached, rows, setSize, member, sample, idle = new Uint8Array(size.length), held = new Uint8Array(size.length) } = columns;
    Object.assign(this, { size, owner, empty, cached, idle, held, member, sample });
    this.slots = about.slots;
    this.unit = about.unit;
    this.times = about.times;
    this.recorded = about.recorded;
    this.pools = about.pools.length ? about.pools : [{ name: "", start: 0, end: about.slots }];
    this.cells = this.slots / this.unit;
    this.start = new Uint32Array(gap.length);
    for (let i = 0, end = 0; i < gap.length; i++) {
      this.start[i] = (end + gap[i]) >>> 0;
      end = this.start[i] + size[i];
    }
    this.offsets = sums(rows);
    this.blocks = this.unit > 1 && owner.some(Boolean) && size.every((many, row) => many === 1 || !owner[row]); // one size for all
    this.sets = sums(setSize); // members of set i: sets[i] .. sets[i + 1]
    this.state = new Int32Array(this.cells); // which row covers each cell
    this.frames = [];
    for (let instant = 0; instant < this.times.length; instant++) {
      this.apply(instant);
      if (instant % EVERY === 0) this.frames.push(this.state.slice());
    }
    this.instant = this.times.length - 1;
    this.seen = new Int32Array(member.length ? max(member) + 1 : 1).fill(-1);
  }

  apply(instant) {
    const { state, start, size } = this;
    for (let row = this.offsets[instant], end = this.offsets[instant + 1]; row < end; row++) {
      const first = start[row];
      if (size[row] === 1) state[first] = row;
      else state.fill(row, first, first + size[row]);
    }
  }

  /** Go to an instant. */
  seek(instant) {
    if (instant === this.instant) return;
    const frame = Math.floor(instant / EVERY);
    if (instant < this.instant || frame * EVERY > this.instant) {
      this.state.set(this.frames[frame]);
      this.instant = frame * EVERY;
    }
    while (this.instant < instant) this.apply(++this.instant);
  }

  /** The instant that holds at a time. */
  at(time) {
    return Math.max(0, lastUpTo(this.times, time));
  }

  /** What lies at a slot. */
  range(slot) {
    const row = this.state[Math.floor(slot / this.unit)];
    const owners = [];
    for (let i = this.sets[this.owner[row]]; i < this.sets[this.owner[row] + 1]; i++) {
      owners.push({ request: this.member[i], sample: this.sample[i] });
    }
    const size = this.size[row] * this.unit;
    const filled = owners.length ? size - this.empty[row] : 0;
    const kind = this.held[row] ? "held" : this.cached[row] ? "cached" : this.idle[row] ? "idle" : "free";
    return { row, start: this.start[row] * this.unit, size, filled, kind, owners };
  }

  /** Every range of this instant in order: calls back with the number of its row. */
  each(visit) {
    for (let cell = 0; cell < this.cells; cell += this.size[this.state[cell]]) visit(this.state[cell]);
  }

  /** How many slots are what, and how many requests hold some. */
  totals() {
    const found = { token: 0, held: 0, empty: 0, cached: 0, idle: 0, free: 0, shared: 0, requests: 0 };
    const { seen, sets, owner, member } = this;
    seen.fill(0);
    this.each((row) => {
      const slots = this.size[row] * this.unit, set = owner[row];
      const holders = sets[set + 1] - sets[set];
      if (!holders) found[this.cached[row] ? "cached" : this.idle[row] ? "idle" : "free"] += slots;
      else {
        found.empty += this.empty[row];
        found[this.held[row] ? "held" : "token"] += slots - this.empty[row];
        if (holders > 1) found.shared += slots - this.empty[row];
        for (let i = sets[set]; i < sets[set + 1]; i++) found.requests += seen[member[i]] ? 0 : (seen[member[i]] = 1);
      }
    });
    return found;
  }

  /** Which sets of owners a request belongs to: one byte per set. */
  setsOf(request) {
    const belongs = new Uint8Array(this.sets.length - 1);
    for (let set = 0, i = 0; i < this.member.length; i++) {
      while (i >= this.sets[set + 1]) set++;
      if (this.member[i] === request) belongs[set] = 1;
    }
    return belongs;
  }

  /** The first instant at which a request holds something, null if there is none. */
  firstWith(belongs) {
    const row = this.owner.findIndex((set) => belongs[set]);
    return row < 0 ? null : lastUpTo(this.offsets, row);
  }

  /** Slots that a request holds now, with others or alone. */
  allocatedBy(belongs) {
    const found = { slots: 0, tokens: 0, ranges: 0 };
    this.each((row) => {
      if (!belongs[this.owner[row]]) return;
      found.slots += this.size[row] * this.unit;
      found.tokens += this.size[row] * this.unit - this.empty[row];
      found.ranges += 1;
    });
    return found;
  }
}

/** [0, a, a + b, ...] */
function sums(values) {
  const found = new Uint32Array(values.length + 1);
  for (let i = 0; i < values.length; i++) found[i + 1] = found[i] + values[i];
  return found;
}

/** The least common multiple. */
function multiple(one, other) {
  let [a, b] = [one, other];
  while (b) [a, b] = [b, a % b];
  return (one / a) * other;
}

function max(values) {
  let largest = 0;
  for (let i = 0; i < values.length; i++) if (values[i] > largest) largest = values[i];
  return largest;
}
