// What all parts use: the data, packed columns, words for numbers, colours of the theme.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const runs = data.runs; // servers: of a fleet its replicas
const systems = data.systems; // what is compared: a server, or a fleet

/** An element with properties and children; `text` is never read as HTML. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name in made && !name.startsWith("aria")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** The bytes of a pack. */
async function bytesOf(name) {
  const holder = $(`pack-${name}`);
  const text = holder.textContent;
  holder.remove(); // once is enough, and it is large
  let packed;
  if (Uint8Array.fromBase64) packed = Uint8Array.fromBase64(text);
  else packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };

/** The columns of a pack: byte planes put together again, differences summed. */
async function columnsOf(name, entries) {
  const bytes = await bytesOf(name);
  const columns = {};
  let at = 0;
  for (const { name: column, type, length, delta } of entries) {
    const width = Number(type[1]);
    const raw = new Uint8Array(length * width);
    for (let plane = 0; plane < width; plane++) {
      for (let i = 0, to = plane; i < length; i++, to += width) raw[to] = bytes[at + i];
      at += length;
    }
    const values = new ARRAYS[type](raw.buffer);
    if (delta) for (let i = 1; i < length; i++) values[i] += values[i - 1];
    columns[column] = values;
  }
  return columns;
}

const NOTHING = 2 ** 32 - 1;
const count = (value) => Math.round(value).toLocaleString("en-US");
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** So many places behind the point, as Python rounds: exact halves to the even digit. */
function rounded(value, places) {
  const text = value.toFixed(places), exact = value.toFixed(Math.min(100, places + 60));
  if (places === 0 ? !/\.50*$/.test(exact) : !new RegExp(`\\.\\d{${places}}50*$`).test(exact)) return text;
  return Number(text.at(-1)) % 2 ? (Number(text) - Math.sign(value) * 10 ** -places).toFixed(places) : text;
}

/** Three significant digits, or all before the point. */
function figures(value) {
  if (!Number.isFinite(value)) return "-";
  if (value === 0) return "0";
  let places = 2 - Math.floor(Math.log10(Math.abs(value)));
  if (places > 0 && Math.abs(Number(rounded(value, Math.min(places, 40)))) >= 10 ** (3 - places)) places -= 1; // 9.996 became 10.00
  const text = rounded(value, Math.max(0, Math.min(places, 40)));
  return text.replace(/^-?\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));
}

/** A duration in the unit that reads best. */
const duration = (s) => (s > 0 && s < 0.9995 ? `${figures(s * 1e3)} ms` : `${figures(s)} s`);
/** A moment of the run, with as many places as its length asks for. */
const moment = (s, end) => `${s.toLocaleString("en-US", fixed(end < 10 ? 3 : end < 1000 ? 2 : 1))} s`;
const fixed = (places) => ({ minimumFractionDigits: places, maximumFractionDigits: places });
const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** The last place at which `sorted` is not above `value`, -1 where there is none. */
function lastUpTo(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

const dark = () => matchMedia("(prefers-color-scheme: dark)").matches && document.documentElement.dataset.theme !== "light";
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
/** A number that no line break parts from its unit, but perhaps from its spread. */
const unbroken = (text) => text.replace(/(?<=[\d±]) (?!±)/g, "\u00a0");

/** The colour of a group of runs; black would be lost on a dark ground. */
const groupColour = (place) => (dark() ? { "#000000": "#e9ecef", "#0072B2": "#3d9fdd" }[data.colours[place]] : null) ?? data.colours[place];
const seeds = systems.length / data.groups.length; // of each group of runs
const kindColour = (kind) => (kind === "free" && dark() ? "#343a40" : data.kinds[kind].colour);

/** [red, green, blue] of a colour written as #rrggbb. */
const parsed = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
/** The colour as it lies in the memory of a canvas. */
const pixel = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
const blend = (one, other, share) => one.map((value, i) => Math.round(value + (other[i] - value) * share));

/** sRGB of a colour given by lightness, chroma and hue in degrees (OKLCH). */
function oklch(lightness, chroma, degrees) {
  const a = chroma * Math.cos((degrees * Math.PI) / 180), b = chroma * Math.sin((degrees * Math.PI) / 180);
  const [l, m, s] = [
    (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3,
    (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3,
    (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3,
  ];
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((value) => {
    const curved = value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055;
    return Math.round(255 * Math.min(1, Math.max(0, curved)));
  });
}
