// The memory map of one run on a canvas: lines of slots, written pixel by pixel.
//
// A line is drawn once into three rows of pixels: plain, where hatching goes, and the band that marks what is
// shared; these are then copied to the pixels of the line. So a frame costs as much for a million slots as for few.
//
// Pools of unlike layers stand one below the other: each begins on a line of its own, below its name.

const HUES = 360, TONES = 3;
const LABEL_PX = 34; // a range at least so wide is named
const NAME_PX = 18; // room for the name of a pool

class Palette {
  constructor() {
    const lightness = dark() ? [0.56, 0.65, 0.74] : [0.62, 0.71, 0.79];
    this.owners = Array.from({ length: HUES * TONES }, (_, i) => oklch(lightness[i % TONES], 0.115, Math.floor(i / TONES)));
    for (const name of ["ground", "card", "free", "cached", "idle", "held", "follow", "shared", "ink"]) this[name] = parsed(variable(name));
  }

  /** A colour of its own for each request; neighbours in number are far apart in hue. */
  owner(request) {
    return this.owners[(Math.floor((request * 137.508) % HUES)) * TONES + ((request * 7) % 11) % TONES];
  }
}

class Painter {
  constructor(canvas, arena) {
    this.canvas = canvas;
    this.arena = arena;
    this.context = canvas.getContext("2d", { alpha: false });
  }

  /**
   * Choose lines for a width in CSS pixels: a block, or 16 slots, is somewhat wider than high. Lines hold a
   * multiple of `unit`, which is alike for all maps of a page: so equal addresses lie at equal places.
   */
  layOut(width, unit) {
    const { slots, pools } = this.arena;
    const quantum = unit * Math.ceil(16 / unit), even = quantum * 40 > slots ? 16 : quantum;
    const wanted = Math.min(440, Math.max(190, width * 0.55));
    const height = Math.min(34, Math.sqrt((width * wanted * Math.min(quantum, 32)) / (1.6 * slots)));
    const lines = Math.max(1, Math.min(Math.round(wanted / height), Math.floor(wanted))); // at least a pixel each
    this.perLine = Math.ceil(slots / lines / even) * even;
    this.lineHeight = Math.min(34, wanted / lines);
    this.lines = 0;
    this.pools = pools.map(({ name, start, end }) => {
      const head = this.lines, first = head + (name ? Math.ceil(NAME_PX / this.lineHeight) : 0);
      this.lines = first + Math.ceil((end - start) / this.perLine);
      return { name, start, end, head, first };
    });
    this.width = width;
    this.height = Math.round(this.lines * this.lineHeight);
    this.ratio = Math.min(devicePixelRatio || 1, 2);
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.canvas.style.height = `${this.height}px`;
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    for (const row of ["plain", "hatch", "band", "slotX"]) this[row] = new (row === "slotX" ? Int32Array : Uint32Array)(this.canvas.width);
    this.zoomed = null;
  }

  /** Magnification at which a slot is some pixels wide. */
  get mostZoom() {
    return Math.max(1, (16 * this.perLine) / this.width);
  }

  /** Lines grow only until they can be read. */
  upright(zoom) {
    return Math.min(zoom, Math.max(1, 30 / this.lineHeight));
  }

  /** What to colour how: again after a change of theme or of whom to follow. */
  colour(palette, followed) {
    const { sets, member } = this.arena, many = sets.length - 1;
    this.palette = palette;
    const pale = followed ? 0.76 : 0;
    this.solid = new Uint32Array(many);
    this.empty = new Uint32Array(many);
    this.many = new Uint8Array(many);
    const mine = [pixel(palette.follow), pixel(blend(palette.follow, palette.card, 0.72))];
    const free = pixel(palette.free);
    for (let set = 0; set < many; set++) {
      const owned = sets[set] < sets[set + 1];
      const [full, hollow] = !owned ? [free, free] : followed?.[set] ? mine : colours(palette, member[sets[set]], pale);
      this.solid[set] = full;
      this.empty[set] = hollow;
      this.many[set] = sets[set + 1] - sets[set] > 1 ? 1 : 0;
    }
    this.ground = pixel(palette.ground);
    this.cached = pixel(blend(palette.cached, palette.card, pale * 0.7));
    this.idle = pixel(blend(palette.idle, palette.card, pale * 0.7));
    this.held = pixel(blend(palette.held, palette.card, pale * 0.7));
    this.followed = followed;
    this.shared = pixel(blend(palette.shared, palette.card, pale));
  }

  /** The slot below a point of the canvas in CSS pixels, or null. */
  slotAt(view, x, y) {
    const { left, top, perSlot, lineHeight } = this.frame(view);
    const line = Math.floor((y * this.ratio + top) / lineHeight);
    const column = Math.floor((x * this.ratio + left) / perSlot);
    const [first, end] = this.slotsOf(line), slot = first + column;
    return column < 0 || column >= this.perLine || slot >= end ? null : slot;
  }

  /** The first slot of a line, and the end of its pool: equal where there is nothing but a name. */
  slotsOf(line) {
    const pool = this.pools.findLast(({ head }) => head <= line);
    if (!pool || line >= this.lines) return [this.arena.slots, this.arena.slots];
    const first = pool.start + (line - pool.first) * this.perLine;
    return line < pool.first ? [pool.start, pool.start] : [first, Math.min(first + this.perLine, pool.end)];
  }

  /** The first slot in sight, and the last. */
  inSight(view) {
    const { top, left, perSlot, lineHeight } = this.frame(view);
    const at = (x, y) => {
      const [first, end] = this.slotsOf(Math.floor((y + top) / lineHeight));
      return Math.min(first + Math.floor((x + left) / perSlot), Math.max(first, end - 1), this.arena.slots - 1);
    };
    return [at(0, 0), at(this.canvas.width - 1, this.canvas.height - 1)];
  }

  /** Where the view stands, in pixels of the device. */
  frame(view) {
    const width = this.canvas.width, height = this.canvas.height, upright = this.upright(view.zoom);
    return {
      perSlot: (width * view.zoom) / this.perLine,
      lineHeight: (this.lineHeight * this.ratio * upright),
      left: Math.min(view.x, 1 - 1 / view.zoom) * width * view.zoom,
      top: Math.min(view.y, 1 - 1 / upright) * height * upright,
    };
  }

  draw(view) {
    const { left, top, perSlot, lineHeight } = this.frame(view);
    const { width, height } = this.canvas, { slotX, pixels } = this;
    if (this.zoomed !== `${view.zoom} ${left}`) {
      for (let x = 0; x < width; x++) slotX[x] = Math.floor((x + 0.5 + left) / perSlot);
      this.zoomed = `${view.zoom} ${left}`;
    }
    const gap = lineHeight >= 5 * this.ratio ? Math.round(this.ratio) : 0;
    const names = [];
    for (let line = Math.floor(top / lineHeight), y = 0; y < height; line++) {
      const end = Math.min(height, Math.max(y + 1, Math.round((line + 1) * lineHeight - top)));
      const last = Math.max(y, end - gap), marks = this.fillLine(line, perSlot, end - y, y, names);
      const bandStart = marks.shared ? last - Math.max(1, Math.round((last - y) * 0.22)) : last;
      for (; y < bandStart; y++) this.copy(y, width, marks.hatched);
      for (; y < last; y++) pixels.set(this.band, y * width);
      for (; y < end; y++) pixels.fill(this.ground, y * width, (y + 1) * width);
    }
    this.show();
    this.head(top, lineHeight);
    if (names.length && lineHeight >= 14 * this.ratio) this.write(names);
  }

  /** Bring the pixels to the canvas; while a browser prints, it takes drawn images but no pixels that are put. */
  show() {
    if (!document.documentElement.classList.contains("paper")) return this.context.putImageData(this.image, 0, 0);
    const { width, height } = this.canvas, sheet = element("canvas", { width, height });
    sheet.getContext("2d").putImageData(this.image, 0, 0);
    this.context.drawImage(sheet, 0, 0);
  }

  /** One row of pixels of a line: hatched stripes lean, so each row is shifted. */
  copy(y, width, hatched) {
    const { plain, hatch, pixels } = this, at = y * width;
    pixels.set(plain, at);
    if (!hatched) return;
    const period = this.ratio > 1 ? 10 : 6, thick = this.ratio > 1 ? 3 : 2;
    for (let start = (period - (y % period)) % period - period; start < width; start += period) {
      for (let x = Math.max(0, start), end = Math.min(width, start + thick); x < end; x++) pixels[at + x] = hatch[x];
    }
  }

  /** Colour the rows of pixels of one line; says whether anything on it is hatched or shared. */
  fillLine(line, perSlot, high, y, names) {
    const { arena, plain, hatch, band, slotX, ground } = this;
    const { state, unit, owner, start, size, empty, cached, idle, held } = arena;
    const marks = { hatched: false, shared: false };
    const [base, end] = this.slotsOf(line), width = slotX.length;
    const ruled = perSlot >= 7 * this.ratio, wide = 5 * this.ratio;
    let row = -1, edge = 0, full = 0, hollow = 0, stripe = 0, under = 0;
    for (let x = 0; x < width; x++) {
      const column = slotX[x], slot = base + column;
      if (slot >= end || column < 0) {
        plain.fill(ground, x), hatch.fill(ground, x), band.fill(ground, x);
        break;
      }
      const found = state[(slot / unit) | 0];
      if (found !== row) {
        const set = owner[found], broad = size[found] * unit * perSlot, owned = set > 0;
        edge = (start[found] + size[found]) * unit - (owned ? empty[found] : 0);
        full = held[found] && !this.followed?.[set] ? this.held : owned ? this.solid[set] : cached[found] ? this.cached : idle[found] ? this.idle : this.solid[0];
        hollow = owned ? this.empty[set] : full;
        stripe = owned ? this.solid[set] : full;
        under = this.many[set] ? this.shared : 0;
        if (under) marks.shared = true;
        if (owned && broad >= LABEL_PX * this.ratio && high >= 13 * this.ratio && names.length < 600) names.push({ x, y, high, row: found, ink: (edge - slot) * perSlot });
        const divided = row >= 0 && broad >= wide && x > 0;
        row = found;
        if (divided) {
          plain[x] = hatch[x] = band[x] = ground;
          continue;
        }
      }
      const inked = slot < edge;
      plain[x] = inked ? full : hollow;
      hatch[x] = inked ? full : stripe;
      band[x] = under || (inked ? full : hollow);
      if (!inked) marks.hatched = true;
      if (ruled && x > 0 && column !== slotX[x - 1]) plain[x] = hatch[x] = mixed(plain[x], ground);
    }
    return marks;
  }

  /** The names of the pools, above them. */
  head(top, lineHeight) {
    const { context, ratio } = this, [red, green, blue] = this.palette.ink;
    context.font = `${12 * ratio}px system-ui, sans-serif`;
    context.textBaseline = "alphabetic";
    context.fillStyle = `rgb(${red} ${green} ${blue})`;
    for (const { name, first } of this.pools) if (name) context.fillText(name, 0, first * lineHeight - top - 5 * ratio);
  }

  /** The numbers of the owners, where there is room. */
  write(names) {
    const { context, arena, ratio } = this;
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.lineWidth = 3 * ratio;
    context.lineJoin = "round";
    for (const { x, y, high, row, ink } of names) {
      const first = arena.sets[arena.owner[row]], many = arena.sets[arena.owner[row] + 1] - first;
      const text = many > 1 ? `${many} ×` : `${arena.member[first]}${arena.sample[first] ? `.${arena.sample[first]}` : ""}`;
      const inked = ink >= (7 + 6.6 * text.length) * ratio; // else it stands on hatching, in part
      const colour = (inked ? this.solid : this.empty)[arena.owner[row]];
      const [red, green, blue] = [0, 8, 16].map((bits) => (colour >> bits) & 255);
      const at = [x + 5 * ratio, y + high * 0.48];
      context.strokeStyle = `rgb(${red} ${green} ${blue})`;
      context.fillStyle = red * 0.3 + green * 0.59 + blue * 0.11 > 105 ? "#10151a" : "#ffffff";
      if (!inked) context.strokeText(text, ...at);
      context.fillText(text, ...at);
    }
  }
}

const cache = new Map();
/** [where tokens are, where none are] of a request, as pixels. */
function colours(palette, request, pale) {
  const own = palette.owner(request), key = own;
  let known = cache.get(key);
  if (!known || known.palette !== palette || known.pale !== pale) {
    const full = blend(own, palette.card, pale);
    known = { palette, pale, pixels: [pixel(full), pixel(blend(full, palette.card, 0.72))] };
    cache.set(key, known);
  }
  return known.pixels;
}

/** Halfway between two pixels, near enough. */
const mixed = (one, other) => ((((one >>> 1) & 0x7f7f7f7f) + ((other >>> 1) & 0x7f7f7f7f)) | 0xff000000) >>> 0;
