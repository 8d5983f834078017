// Small line charts as SVG, made of elements and numbers only: no text from outside ever becomes markup.

const SVG = "http://www.w3.org/2000/svg";
// size of a chart, and its margins: at the left are the labels of the axis
const WIDTH = 300, HEIGHT = 84, LEFT = 34, TOP = 6, BOTTOM = 4;

/** Return a new SVG element, which is appended to `parent` if there is one. */
function element(name, attributes, parent) {
  const created = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, String(value));
  if (parent) parent.append(created);
  return created;
}

/** Return a round number at least as large as the value: 1, 2, 5 or 10 times a power of ten; 1 for 0 and below. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value);
}

/** Return a number as short text: 0.12, 9.9, 120, 12k; a dash without a number. */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value >= 10000) return `${Math.round(value / 1000)}k`;
  if (value >= 100) return String(Math.round(value));
  return String(Number(value.toPrecision(2)));
}

/**
 * Return a chart of lines over time, the newest point at the right, with the last values in its caption.
 * `lines`: [{values, name}]; null among the values: a gap. `mostPoints`: number of points that fill the width.
 */
export function chart(title, unit, lines, mostPoints) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.append(Object.assign(document.createElement("b"), { textContent: title }));
  lines.forEach((line, index) => {
    const last = line.values.at(-1);
    const entry = document.createElement("span");
    entry.className = `key line${index}`;
    entry.textContent = `${line.name} ${short(last)}${last === null || last === undefined ? "" : ` ${unit}`}`;
    caption.append(entry);
  });
  const numbers = lines.flatMap((line) => line.values).filter((value) => value !== null);
  const most = ceiling(Math.max(0, ...numbers));
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  svg.setAttribute("aria-label", `${title}, ${unit}: ${lines.map((l) => `${l.name} ${short(l.values.at(-1))}`).join(", ")}`);
  const high = HEIGHT - TOP - BOTTOM;
  for (const share of [0, 0.5, 1]) {
    const y = TOP + high * (1 - share);
    element("line", { x1: LEFT, x2: WIDTH, y1: y, y2: y, class: "grid" }, svg);
    const label = element("text", { x: LEFT - 4, y: y + 3, class: "axis", "text-anchor": "end" }, svg);
    label.textContent = short(most * share);
  }
  const step = (WIDTH - LEFT) / Math.max(mostPoints - 1, 1);
  lines.forEach((line, index) => {
    let path = "", pen = false;
    const start = mostPoints - line.values.length;
    line.values.forEach((value, at) => {
      if (value === null) { pen = false; return; }
      const x = LEFT + (start + at) * step, y = TOP + high * (1 - Math.min(value / most, 1));
      path += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = true;
    });
    element("path", { d: path || "M0 0", class: `line line${index}` }, svg);
  });
  figure.append(caption, svg);
  return figure;
}
