// Small line charts as SVG, made of elements and numbers only: no text from outside ever becomes markup.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300, HEIGHT = 84, LEFT = 34, TOP = 6, BOTTOM = 4;

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (parent) parent.append(made);
  return made;
}

/** A round number at least as large as the value: 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value);
}

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value >= 10000) return `${Math.round(value / 1000)}k`;
  if (value >= 100) return String(Math.round(value));
  return String(Number(value.toPrecision(2)));
}

/** Draw lines over time, the newest point at the right. `lines`: [{values, name}], the same length each. */
export function chart(title, unit, lines, kept) {
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
  const known = lines.flatMap((line) => line.values).filter((value) => value !== null);
  const most = ceiling(Math.max(0, ...known));
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  svg.setAttribute("aria-label", `${title}, ${unit}: ${lines.map((l) => `${l.name} ${short(l.values.at(-1))}`).join(", ")}`);
  const high = HEIGHT - TOP - BOTTOM;
  for (const share of [0, 0.5, 1]) {
    const y = TOP + high * (1 - share);
    element("line", { x1: LEFT, x2: WIDTH, y1: y, y2: y, class: "grid" }, svg);
    const label = element("text", { x: LEFT - 4, y: y + 3, class: "axis", "text-anchor": "end" }, svg);
    label.textContent = short(most * share);
  }
  const step = (WIDTH - LEFT) / Math.max(kept - 1, 1);
  lines.forEach((line, index) => {
    let path = "", pen = false;
    const start = kept - line.values.length;
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
