// Boxes of answers over a picture, as SVG made of numbers only: no text from outside ever becomes markup.

const SVG = "http://www.w3.org/2000/svg";
// width of a picture divided by its height, by the picture's address: known before it is loaded again
const shapes = new Map();
const MOST_SHAPES = 200;

/** Return the rectangle of a box: [left, top, right, bottom, ...], in shares of the picture's width and height. */
function rectangle(box, className) {
  const element = document.createElementNS(SVG, "rect");
  const [left, top, right, bottom] = box.slice(0, 4).map((share) => Math.min(Math.max(Number(share) || 0, 0), 1));
  for (const [key, value] of Object.entries({
    class: className, x: Math.min(left, right), y: Math.min(top, bottom), width: Math.abs(right - left), height: Math.abs(bottom - top),
  })) element.setAttribute(key, String(value));
  return element;
}

/** Return a drawing of boxes, each with a dark halo. `layers`: [[CSS classes, boxes or null]], the last on top. */
function overlay(layers) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", "0 0 1 1");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  for (const [name, boxes] of layers) {
    const halo = name.replace(/^\w+/, "halo");
    for (const box of boxes || []) drawing.append(rectangle(box, halo), rectangle(box, name));
  }
  return drawing;
}

/** Return a picture (an img) with boxes, as large as its square allows. `layers`: as of `overlay`. */
export function framed(picture, layers) {
  const frame = document.createElement("span"), fitted = document.createElement("span");
  frame.className = "framed";
  fitted.className = "fitted";
  const fit = (shape) => {
    fitted.style.aspectRatio = String(shape);
    fitted.style.width = `${100 * Math.min(shape, 1)}%`;
  };
  fit(shapes.get(picture.src) || 1);
  picture.addEventListener("load", () => {
    if (shapes.size >= MOST_SHAPES) shapes.clear();
    const shape = picture.naturalWidth / picture.naturalHeight;
    shapes.set(picture.src, shape);
    fit(shape);
  });
  fitted.append(picture, overlay(layers));
  frame.append(fitted);
  return frame;
}
