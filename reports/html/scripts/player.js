// The player: one time and one view for the maps of all runs; pointing names, clicking follows.

class Player {
  constructor(maps, follow) {
    this.every = maps; // [{ place, run, arena }]
    this.replica = maps.find(({ run }) => run.replica !== null)?.run.replica ?? null;
    this.maps = maps.filter((map) => this.chosen(map)); // those in sight
    this.follow = follow;
    this.end = Math.max(...maps.map(({ run }) => run.end), 1e-9);
    this.moments = [...new Set(maps.flatMap(({ arena }) => [...arena.times]))].sort((a, b) => a - b);
    this.view = { zoom: 1, x: 0, y: 0 };
    this.followed = null;
    this.listeners = []; // told of every new time
    this.build();
    this.listen();
    this.restyle();
    this.seek(this.moments[Math.floor(this.moments.length * 0.35)] ?? 0);
  }

  /** Whether a map is in sight: of a fleet, that of one replica. */
  chosen({ run }) {
    return run.replica === null || run.replica === this.replica;
  }

  /** Show the memory of another replica. */
  choose(replica) {
    this.replica = replica;
    $("replica").value = replica;
    this.maps = this.every.filter((map) => this.chosen(map));
    for (const map of this.every) map.figure.hidden = !this.chosen(map);
    this.layOut();
    this.restyle();
  }

  build() {
    const wide = this.maps.length === 1 ? 1 : this.maps.length === 2 || this.maps.length === 4 ? 2 : 3;
    $("maps").dataset.wide = wide;
    for (const map of this.every) {
      map.words = element("p", { class: "hint" });
      map.canvas = element("canvas", { tabIndex: 0, role: "img" });
      const size = `${count(map.arena.slots)} slots`, block = map.arena.blocks ? ` in blocks of ${map.arena.unit}` : "";
      map.sight = element("span");
      const ends = element("div", { class: "ends" }, map.sight, element("span", { text: `${size}${block}` }));
      const layers = map.run.arena.layers ? [element("p", { class: "hint", text: sentence(map.run.arena.layers) })] : [];
      const named = map.run.replica !== null && systems.length > 1 ? `${systems[map.run.system].label}, ` : "";
      map.figure = element("figure", { class: "map", hidden: !this.chosen(map) },
        element("figcaption", {}, element("h3", { text: named + map.run.label }), map.words, ...layers), map.canvas, ends);
      $("maps").append(map.figure);
      map.painter = new Painter(map.canvas, map.arena);
    }
    const said = this.maps.map(({ run, arena }) => {
      const left = arena.times.length < arena.recorded ? ` of ${arena.recorded} recorded, to keep this page small` : "";
      return `${this.maps.length > 1 ? `${run.label}: ` : ""}${plural(arena.times.length, "instant")}${left}`;
    });
    const replicas = [...new Set(this.every.map(({ run }) => run.replica).filter((replica) => replica !== null))];
    $("replica-label").hidden = !replicas.length;
    $("replica").append(...replicas.map((replica) => element("option", { value: replica, text: replica })));
    $("replica").addEventListener("change", () => this.choose(Number($("replica").value)));
    $("instants").textContent = `The map holds, spread evenly over the work done: ${said.join("; ")}.`;
    this.layOut();
  }

  layOut() {
    const unit = this.maps.reduce((whole, { arena }) => multiple(whole, arena.unit), 1);
    for (const map of this.maps) map.painter.layOut(Math.max(120, map.canvas.parentElement.clientWidth), unit);
    this.mostZoom = Math.max(...this.maps.map(({ painter }) => painter.mostZoom));
  }

  /** Colours again, after a change of theme or of the request followed. */
  restyle() {
    const palette = new Palette();
    this.palette = palette;
    for (const map of this.maps) {
      map.belongs = this.followed === null ? null : map.arena.setsOf(this.followed);
      map.painter.colour(palette, map.belongs);
    }
    legend(palette);
    this.draw();
  }

  /** Follow a request, or nobody (null); `find` also goes to a moment at which it is in memory. */
  track(request, find) {
    this.followed = request;
    this.restyle();
    if (request === null || !find) return;
    const home = this.every.find((map) => map.run.replica !== null && map.arena.firstWith(map.arena.setsOf(request)) !== null);
    if (home && !this.chosen(home)) this.choose(home.run.replica);
    for (const { arena } of this.maps) arena.seek(arena.at(this.time));
    if (this.maps.some(({ arena, belongs }) => arena.allocatedBy(belongs).slots)) return;
    for (const { arena, belongs } of this.maps) {
      const instant = arena.firstWith(belongs);
      if (instant !== null) return this.seek(arena.times[instant]);
    }
  }

  // -- time -----------------------------------------------------------------------------------

  seek(time) {
    this.time = Math.min(this.end, Math.max(0, time));
    const slider = $("time"), said = moment(this.time, this.end);
    slider.value = Math.round((this.time / this.end) * 10000);
    slider.setAttribute("aria-valuetext", said);
    $("clock").textContent = said;
    for (const listener of this.listeners) listener(this.time);
    this.draw();
  }

  /** To the next recorded instant of any run, or the one before. */
  step(by) {
    const now = lastUpTo(this.moments, this.time + this.end * 1e-9);
    const exact = now >= 0 && Math.abs(this.moments[now] - this.time) <= this.end * 1e-9;
    const next = by > 0 ? now + 1 : exact ? now - 1 : now;
    this.pause();
    this.seek(this.moments[Math.min(this.moments.length - 1, Math.max(0, next))]);
  }

  play() {
    if (this.time >= this.end) this.seek(0);
    $("play").setAttribute("aria-label", "Pause");
    let before = null;
    const frame = (now) => {
      if (before !== null) this.seek(this.time + ((now - before) / 40000) * this.end * Number($("speed").value));
      before = now;
      if (this.time >= this.end) this.pause();
      else this.playing = requestAnimationFrame(frame);
    };
    this.playing = requestAnimationFrame(frame);
  }

  pause() {
    cancelAnimationFrame(this.playing ?? 0);
    this.playing = null;
    $("play").setAttribute("aria-label", "Play");
    this.describe();
  }

  // -- drawing --------------------------------------------------------------------------------

  paint() {
    const began = performance.now();
    for (const map of this.maps) this.drawMap(map);
    this.frameMs = performance.now() - began;
  }

  draw() {
    if (this.due) return; // once per frame of the screen, however often the time changes
    this.due = requestAnimationFrame(() => {
      this.due = null;
      this.paint();
      if (!this.playing) this.describe();
      if (this.pointer) this.point(this.pointer);
    });
  }

  drawMap(map) {
    const { arena, painter, run } = map;
    const instant = arena.at(this.time), over = this.time > run.end;
    if (map.shown !== instant || map.over !== over) {
      arena.seek(instant);
      map.shown = instant;
      map.over = over;
      map.totals = arena.totals();
      const { token, held, empty, cached, idle, requests } = map.totals;
      const parts = [`${percent(token / arena.slots)} tokens`, `${percent(empty / arena.slots)} empty`];
      if (held) parts.splice(1, 0, `${percent(held / arena.slots)} held`);
      if (cached) parts.push(`${percent(cached / arena.slots)} cached`);
      if (idle) parts.push(`${percent(idle / arena.slots)} idle`);
      map.words.textContent = over ? `over since ${moment(run.end, this.end)}` : `${plural(requests, "request")}: ${parts.join(", ")}`;
    }
    painter.draw(this.view);
    const [first, last] = painter.inSight(this.view);
    map.sight.textContent = this.view.zoom > 1 ? `slots ${count(first)} to ${count(last)}, in part` : "slot 0";
  }

  /** For those who do not see the map. */
  describe() {
    for (const { canvas, words, run } of this.maps) {
      canvas.setAttribute("aria-label", `Memory map of ${run.label} at ${moment(this.time, this.end)}. ${words.textContent}.`);
      canvas.classList.toggle("zoomed", this.view.zoom > 1);
    }
  }

  // -- view -----------------------------------------------------------------------------------

  /** Magnify about a point of a map, both given as shares of its size. */
  magnify(factor, painter = this.maps[0].painter, x = 0.5, y = 0.5) {
    const { view } = this, zoom = Math.min(this.mostZoom, Math.max(1, view.zoom * factor));
    const [before, after] = [painter.upright(view.zoom), painter.upright(zoom)];
    this.look(zoom, view.x + x / view.zoom - x / zoom, view.y + y / before - y / after, after);
  }

  look(zoom, x, y, upright) {
    const inside = (value, scale) => Math.min(1 - 1 / scale, Math.max(0, value));
    this.view = { zoom, x: inside(x, zoom), y: inside(y, upright) };
    $("zoom").textContent = `${zoom < 10 ? zoom.toFixed(zoom === 1 ? 0 : 1) : Math.round(zoom)} ×`;
    $("out").disabled = $("all").disabled = zoom <= 1;
    $("in").disabled = zoom >= this.mostZoom;
    this.draw();
  }

  pan(painter, dx, dy) {
    const { view } = this, upright = painter.upright(view.zoom);
    this.look(view.zoom, view.x - dx / painter.width / view.zoom, view.y - dy / painter.height / upright, upright);
  }

  // -- pointing -------------------------------------------------------------------------------

  /** Name what lies below the pointer. */
  point({ map, x, y, clientX, clientY }) {
    const slot = map.painter.slotAt(this.view, x, y), tip = $("tip");
    this.pointer = slot === null ? null : { map, x, y, clientX, clientY, top: topOf(map) };
    tip.hidden = slot === null;
    if (slot === null) return;
    tip.replaceChildren(...this.about(map, map.arena.range(slot)));
    const { width, height } = tip.getBoundingClientRect();
    const left = clientX + 18 + width > innerWidth - 8 ? clientX - 18 - width : clientX + 18;
    const top = clientY + 18 + height > innerHeight - 8 ? clientY - 18 - height : clientY + 18;
    tip.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
  }

  about({ arena }, range) {
    const line = (text) => element("p", { text });
    const place = `slots ${count(range.start)} to ${count(range.start + range.size - 1)}`;
    if (!range.owners.length) return [element("strong", { text: { cached: "Cached prefix", idle: "Idle: empty, kept by the allocator", free: "Free" }[range.kind] }), line(place)];
    const named = range.owners.slice(0, 6).map(({ request, sample }) => `${count(request)}${sample ? `, answer ${sample}` : ""}`);
    const more = range.owners.length > 6 ? ` and ${range.owners.length - 6} more` : "";
    const swatch = element("i");
    swatch.style.background = `rgb(${this.palette.owner(range.owners[0].request).join(" ")})`;
    const title = `${range.owners.length > 1 ? "Requests" : "Request"} ${named.join(range.owners[1] ? "; " : "")}${more}`;
    const held = arena.allocatedBy(arena.setsOf(range.owners[0].request));
    const empty = range.size - range.filled;
    return [
      element("strong", {}, swatch, title),
      line(`${plural(range.filled, "token")} here, ${empty ? `${plural(empty, "slot")} empty` : "no slot empty"}`),
      ...(range.kind === "held" ? [line("held: its prompt is computed and waits to be read")] : []),
      line(`${count(held.tokens)} tokens in ${plural(held.ranges, "range")} in all, ${count(held.slots - held.tokens)} empty`),
      line(`reference count ${range.owners.length}; ${place}`),
    ];
  }

  hide() {
    this.pointer = null;
    $("tip").hidden = true;
  }
}

/** What the colours and patterns of the map mean. */
function legend(palette) {
  const own = palette.owner(3);
  const items = [
    ["holds tokens, a colour per request", own],
    ["allocated, but empty", own, "hatched"],
    ["shared by several", own, "shared"],
    ...(data.kinds.held ? [["held: computed, waits to be read", palette.held]] : []),
    ["cached prefix, nobody's", palette.cached],
    ...(data.kinds.idle ? [["idle: empty, kept by the allocator", palette.idle]] : []),
    ["free", palette.free],
  ];
  $("map-legend").replaceChildren(...items.map(([text, colour, pattern]) => {
    const canvas = element("canvas", { width: 44, height: 28 }), context = canvas.getContext("2d");
    const css = (rgb) => `rgb(${rgb.join(" ")})`;
    context.fillStyle = css(pattern === "hatched" ? blend(colour, palette.card, 0.72) : colour);
    context.fillRect(0, 0, 44, 28);
    context.strokeStyle = css(own);
    context.lineWidth = 3;
    if (pattern === "hatched") for (let x = -28; x < 44; x += 10) context.stroke(new Path2D(`M${x} 28L${x + 28} 0`));
    context.fillStyle = css(palette.shared);
    if (pattern === "shared") context.fillRect(0, 21, 44, 7);
    return element("li", {}, element("span", { class: "swatch", "aria-hidden": "true" }, canvas), text);
  }));
}
