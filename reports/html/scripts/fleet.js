// The replicas of a fleet: a band over them, and heat maps with a row for each; a click shows one replica's memory.

const fleetOf = (system) => data.fleets[system];
const anyFleet = data.fleets.some(Boolean);

/** A shade of blue to yellow, told apart without red and green. */
function shade(share) {
  const [low, middle, high] = dark() ? [[27, 31, 35], [40, 120, 180], [255, 224, 130]] : [[244, 246, 245], [86, 150, 200], [16, 42, 92]];
  return share < 0.5 ? blend(low, middle, 2 * share) : blend(middle, high, 2 * share - 1);
}

function paintHeat(canvas, { rows, most }) {
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const image = new ImageData(canvas.width, canvas.height), cells = new Uint32Array(image.data.buffer);
  rows.forEach((row, y) => row.forEach((value, x) => { if (value !== null) cells[y * row.length + x] = pixel(shade(Math.min(1, value / most))); })); // none: dead or off
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const heats = []; // painted again in another theme
const repaintFleets = () => heats.forEach(([canvas, found]) => paintHeat(canvas, found));

function heat(fleet, name, found, choose) {
  const canvas = element("canvas", { class: "heat", role: "img", "aria-label": `${name} of ${fleet.replicas} replicas over time: a row each. ${fleet.words}.` });
  canvas.style.height = `${Math.min(260, Math.max(72, 18 * found.rows.length))}px`;
  const at = ({ clientX, clientY }) => {
    const { left, top, width, height } = canvas.getBoundingClientRect(), inside = (share, many) => Math.min(many - 1, Math.max(0, Math.floor(share * many)));
    return [inside((clientY - top) / height, found.rows.length), inside((clientX - left) / width, found.rows[0].length)];
  };
  const said = element("output", { class: "hint" });
  canvas.addEventListener("pointermove", (event) => {
    const [row, column] = at(event);
    const value = found.rows[row][column], here = value === null ? "dead or off" : `${figures(value)}${found.unit}`;
    said.textContent = `replica ${row} at ${moment(((column + 0.5) * fleet.end) / found.rows[0].length, fleet.end)}: ${here}`;
  });
  canvas.addEventListener("pointerleave", () => { said.textContent = ""; });
  canvas.addEventListener("click", (event) => choose(at(event)[0]));
  heats.push([canvas, found]);
  paintHeat(canvas, found);
  return element("figure", { class: "figure" },
    element("figcaption", {}, element("h3", { text: sentence(`${name}, by replica`).replace(/\.$/, "") }), element("p", { text: `Light is 0, dark is ${figures(found.most)}${found.unit}.` })),
    element("div", { class: "heats" }, element("span", { class: "ends", text: `replica 0 to ${found.rows.length - 1}` }), canvas,
      element("div", { class: "ends" }, element("span", { text: "0 s" }), said, element("span", { text: moment(fleet.end, fleet.end) }))));
}

/** The range of the replicas' KV memory around their mean. */
function band(fleet) {
  const { rows } = fleet.maps["KV memory in use"], x = across(rows[0], fleet.end);
  const over = (pick) => rows[0].map((_, i) => {
    const there = rows.map((row) => row[i]).filter((value) => value !== null);
    return there.length ? pick(there) : null;
  });
  const colour = kindColour("token"), edge = { line: { width: 0 }, type: "scatter", mode: "lines", x, hovertemplate: "%{y:.1f} %" };
  const traces = [
    { ...edge, y: over((all) => Math.min(...all)), name: "least" },
    { ...edge, y: over((all) => Math.max(...all)), name: "most", fill: "tonexty", fillcolor: `${colour}44` },
    { ...edge, y: over((all) => all.reduce((a, b) => a + b) / all.length), name: "mean", line: { color: colour, width: 1.8 } },
  ];
  return [traces, layout({ xaxis: axis({ range: [0, fleet.end], title: "time (s)" }), yaxis: axis({ range: [0, 100], tickvals: [0, 50, 100], title: "% of a replica" }) })];
}

/** The section about fleets; `choose` shows a replica's memory. */
function buildFleets(choose) {
  $("fleet").hidden = !anyFleet;
  if (!anyFleet) return;
  const shown = runs.some(({ map }) => map);
  $("fleet-lead").textContent = `Each row is a replica.${shown ? ` ${touched() ? "Tap" : "Click"} one to see its memory below.` : ""}`;
  systems.forEach(({ label, first }, place) => {
    const fleet = fleetOf(place);
    if (!fleet || !first) return;
    fleet.replicas = Object.values(fleet.maps)[0]?.rows.length ?? 0;
    const parent = element("div", { class: "fleet" }, element("h3", { text: systems.length > 1 ? label : "Balance" }), element("p", { class: "lead", text: `${sentence(fleet.words)}${fleet.hits.length ? ` Prefix hits: ${count(Math.min(...fleet.hits))} to ${count(Math.max(...fleet.hits))} tokens.` : ""}` }));
    $("fleets").append(parent);
    if (fleet.maps["KV memory in use"]) chart(parent, "KV memory in use", `Per cent of a replica's slots: the mean of ${fleet.replicas} replicas, and their range.`, () => band(fleet), { height: 180 });
    for (const [name, found] of Object.entries(fleet.maps)) parent.append(heat(fleet, name, found, (replica) => choose(replica, true)));
  });
}
