// What the player listens to: buttons, slider, keys, pointers, fingers, the size of the window.

Player.prototype.listen = function () {
  const on = (name, event, act) => $(name).addEventListener(event, act);
  on("play", "click", () => (this.playing ? this.pause() : this.play()));
  on("back", "click", () => this.step(-1));
  on("forward", "click", () => this.step(1));
  on("time", "input", () => {
    if (this.playing) this.pause();
    this.seek((Number($("time").value) / 10000) * this.end);
  });
  on("in", "click", () => this.magnify(2));
  on("out", "click", () => this.magnify(0.5));
  on("all", "click", () => this.magnify(0));
  on("follow", "submit", (event) => {
    event.preventDefault();
    const number = $("whom").value.replaceAll(",", "").trim();
    this.follow(/^\d+$/.test(number) ? Number(number) : null, true);
  });
  on("unfollow", "click", () => this.follow(null));
  $("memory").addEventListener("keydown", (event) => this.key(event));
  for (const map of this.every) this.listenTo(map);
  addEventListener("pointerdown", () => this.hide(), { capture: true, passive: true });
  addEventListener("scroll", () => (this.pointer && Math.abs(this.pointer.top - topOf(this.pointer.map)) > 4 ? this.hide() : null), { capture: true, passive: true });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width && this.maps[0].painter.ratio === Math.min(devicePixelRatio || 1, 2)) return;
    width = innerWidth;
    this.layOut();
    this.magnify(1);
  });
  this.magnify(1);
};

const topOf = ({ canvas }) => canvas.getBoundingClientRect().top;

Player.prototype.key = function (event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input[type=text], select");
  const pressing = event.target.matches("button, summary");
  const acts = {
    ArrowLeft: () => this.step(-1),
    ArrowRight: () => this.step(1),
    " ": pressing ? null : () => (this.playing ? this.pause() : this.play()),
    "+": () => this.magnify(2),
    "=": () => this.magnify(2),
    "-": () => this.magnify(0.5),
    0: () => this.magnify(0),
    Escape: () => this.follow(null),
    Home: () => this.seek(0),
    End: () => this.seek(this.end),
  };
  const act = typing && event.key !== "Escape" ? null : acts[event.key];
  if (!act) return;
  event.preventDefault();
  act();
};

/** Pointers over one map: hover names, a click follows, drags and pinches move the view. */
Player.prototype.listenTo = function (map) {
  const { canvas, painter } = map, down = new Map();
  let moved = 0, spread = 0;
  const at = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    return { map, x: event.clientX - left, y: event.clientY - top, clientX: event.clientX, clientY: event.clientY };
  };
  canvas.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, event);
    moved = 0;
    spread = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before) return event.pointerType === "touch" ? undefined : this.point(at(event));
    const dx = event.clientX - before.clientX, dy = event.clientY - before.clientY;
    moved += Math.abs(dx) + Math.abs(dy);
    down.set(event.pointerId, event);
    if (down.size === 2) {
      const [one, other] = down.values();
      const distance = Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
      const middle = at({ clientX: (one.clientX + other.clientX) / 2, clientY: (one.clientY + other.clientY) / 2 });
      if (spread) this.magnify(distance / spread, painter, middle.x / painter.width, middle.y / painter.height);
      spread = distance;
    } else if (this.view.zoom > 1 && moved > 4) {
      if (!canvas.hasPointerCapture(event.pointerId)) canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("dragged");
      this.hide();
      this.pan(painter, dx, dy);
    }
  });
  const release = (event) => {
    const clicked = event.type === "pointerup" && down.size === 1 && moved <= 4;
    down.delete(event.pointerId);
    canvas.classList.remove("dragged");
    if (!clicked) return;
    const place = at(event), slot = painter.slotAt(this.view, place.x, place.y);
    if (event.pointerType === "touch") this.point(place);
    const owner = slot === null ? null : map.arena.range(slot).owners[0];
    this.follow(owner ? owner.request : null);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", ({ pointerType }) => (pointerType === "touch" ? null : this.hide())); // a finger always leaves
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // the page scrolls; a pinch on a touchpad comes with ctrlKey
    event.preventDefault();
    const place = at(event);
    this.magnify(Math.exp(-event.deltaY / 200), painter, place.x / painter.width, place.y / painter.height);
  }, { passive: false });
};
