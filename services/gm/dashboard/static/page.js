// Shows the sections that the stream sends. Texts from outside go through textContent, so they never become markup.
// `services.gm.dashboard.feed` makes the rows; a function that takes a row returns its element.

import { framed } from "/boxes.js";
import { chart, short } from "/charts.js";

// points that fill a chart's width: HISTORY of the feed
const POINTS = 120;
const byId = (id) => document.getElementById(id);
// the rows of a section that was not received yet, unlike an empty one
const UNKNOWN = [];
// the last rows of each section
const sections = { services: UNKNOWN, nodes: UNKNOWN, cameras: UNKNOWN, samples: UNKNOWN, events: UNKNOWN, loops: UNKNOWN, problems: UNKNOWN };
// what is typed into the search field, in small letters; empty: all rows are shown
let query = "";

/** Return a new element. `className`: CSS classes, empty: none. `content`: texts and elements; null and "" are left out. */
function make(name, className, ...content) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...content.filter((item) => item !== null && item !== undefined && item !== ""));
  return element;
}

// the CSS class of a service's phase
const tone = (phase) => ({ Running: "good", Degraded: "warn", Pending: "warn", Failed: "bad" })[phase] || "plain";
const pill = (text, kind) => make("span", `pill ${kind}`, text);
const number = (value) => Number(value || 0).toLocaleString("en-US");
// names of metrics; a metric without a name here has its key, as words
const NAMES = {
  jointAccuracy: "agrees with the cloud", jointAccuracyLow: "at least", jointAccuracyHigh: "at most",
  audited: "audited", auditAgreed: "audits agreed",
};
const words = (key) => NAMES[key] || key.replace(/([A-Z])/g, " $1").toLowerCase();
// a metric's value: accuracies are shares
const measure = (key, value) => (/ccuracy/.test(key) ? percent(value) : number(value));
const percent = (value) => `${(Number(value || 0) * 100).toFixed(1)} %`;

/** Return a list of terms with values. `pairs`: [[term, value, CSS class (optional)]]. */
function facts(pairs) {
  const list = make("dl", "facts");
  for (const [name, value, kind] of pairs) {
    const quiet = value === "0" || value === 0 ? "zero" : "";
    list.append(make("div", kind || quiet, make("dt", "", name), make("dd", "", value)));
  }
  return list;
}

/** Return a bar for a share, 0 to 1. */
function meter(ratio) {
  const bar = make("meter", "ratio");
  bar.max = 1;
  bar.value = Math.min(Math.max(Number(ratio) || 0, 0), 1);
  bar.title = "share of samples sent to the cloud";
  return bar;
}

// a node of a service: its workers there, or that it runs none of them any more
function nodeOfService(row) {
  if (row.phase === "Left") return pill(`${row.node} · left`, "plain");
  return pill(`${row.node} · ${several(row.workers, "worker")}`, row.online ? tone(row.phase) : "bad");
}

function service(row) {
  // the values of a line of a chart, by its index in the points (`point` of the feed)
  const m = row.metrics, line = (at) => row.points.map((point) => point[at]);
  const title = make("h3", "", make("span", "dim", `${row.namespace}/`), row.name, " ", pill(row.phase, tone(row.phase)));
  const alarm = (value) => (Number(value) > 0 ? "alarm" : "");
  const extra = Object.entries(m).filter(([key]) => /ccuracy|audit/.test(key)).map(([key, value]) => [words(key), measure(key, value)]);
  const card = make("article", `card ${tone(row.phase)}`, title,
    row.message && row.phase !== "Running" ? make("p", "why", make("b", "", row.reason), ` ${row.message}`) : null,
    row.overload ? make("p", "why", row.overload) : null,
    facts([
      ["answered", number(m.inferenceNumber)], ["by the cloud", number(m.cloudInferenceNumber)],
      ["inside now", number(row.queued)], ["degraded", number(m.degraded), alarm(m.degraded)],
      ["lost", number(m.lost), alarm(m.lost)], ["rejected", number(m.rejected), alarm(m.rejected)],
      ["model errors", number(m.modelErrors), alarm(m.modelErrors)], ...extra,
    ]),
    make("p", "upload", `${percent(m.uploadCloudRatio)} sent to the cloud`, meter(m.uploadCloudRatio)),
    make("div", "charts",
      chart("answers", "/s", [{ name: "all", values: line(0) }, { name: "cloud", values: line(1) }], POINTS),
      chart("edge latency", "ms", [{ name: "p50", values: line(2) }, { name: "p99", values: line(3) }], POINTS),
      chart("offload latency", "ms", [{ name: "p50", values: line(4) }, { name: "p99", values: line(5) }], POINTS)),
    make("p", "where", ...row.nodes.map(nodeOfService)));
  return card;
}

// a number with its noun: 1 box, 2 boxes
const several = (count, what, plural = `${what}s`) => `${count} ${String(count) === "1" ? what : plural}`;

function node(row) {
  const gigabytes = row.memory ? `${short(row.memory / 2 ** 30)} GiB` : "";
  const [state, kind] = !row.online ? [row.drained ? "drained, offline" : "offline", "bad"] : row.drained ? ["drained", "warn"] : ["online", "good"];
  return make("article", `tile ${kind}`,
    make("h3", "", row.name, " ", pill(state, kind)),
    make("p", "dim", [row.cpus ? several(row.cpus, "CPU") : "", gigabytes, several(row.resources, "resource"), row.version && `version ${row.version}`].filter(Boolean).join(" · ")),
    make("p", "labels", ...row.labels.map((label) => make("span", "label", label))));
}

/** Return the picture of a hard sample, by its id; a small one is shown with visible pixels. */
function thumbnail(id, text) {
  const picture = make("img", "");
  picture.src = `/samples/${encodeURIComponent(id)}`;
  picture.alt = text;
  picture.loading = "lazy";
  picture.addEventListener("load", () => picture.classList.toggle("coarse", picture.naturalWidth <= 64));
  return picture;
}

// the CSS class of a camera's state
const STATES = { running: "good", connecting: "plain", stopped: "plain", stalled: "warn", failed: "bad", gone: "bad" };

function camera(row) {
  const form = [row.fps ? `${short(row.fps)} frames/s` : "", row.width ? `${row.width} × ${row.height}` : "",
    row.frames ? several(number(row.frames), "frame") : "", row.skipped ? `${number(row.skipped)} skipped` : "", row.node];
  const trouble = row.state !== "stopped" && (row.reason || row.error) ? [row.reason, row.error].filter(Boolean).join(": ") : "";
  return make("article", `camera ${STATES[row.state] || "plain"}`,
    row.picture ? thumbnail(row.picture, `last hard sample of camera ${row.name}`) : make("div", "blank", "no picture yet"),
    make("div", "",
      make("h3", "", make("span", "dim", `${row.namespace}/`), row.name, " ", row.state ? pill(row.state, STATES[row.state] || "plain") : null),
      trouble ? make("p", "why", trouble) : null,
      make("p", "dim", form.filter(Boolean).join(" · ") || (row.state ? "" : "publishes its frames itself")),
      make("p", "dim", row.services.length ? `read by ${row.services.join(", ")}` : "no service names it")));
}

const digits = (value) => Number(value).toPrecision(3);
const isDetection = (row) => Boolean(row.edgeBoxes || row.boxes);
// the answers whose boxes are drawn. An edge's own answer is both: one layer. Dashes let an equal final box show through
const layers = (row) => [...(row.by === "edge" ? [] : [["final", row.boxes]]), ["edge dashed", row.edgeBoxes]];

// both answers in words: classes with their scores, or the numbers of boxes
function answers(row) {
  const isFinal = row.by !== "edge";
  if (isDetection(row)) {
    const before = row.edgeBoxes ? number(row.edgeCount) : "?", after = row.boxes ? number(row.count) : "?";
    return [isFinal ? make("b", "", `${before} → ${several(after, "box", "boxes")}`) : make("b", "", several(before, "box", "boxes"))];
  }
  const says = (label, score) => [make("bdi", "", label || "?"), score ? ` ${percent(score)}` : ""];
  return [
    make("span", isFinal && row.label !== row.edge ? "struck" : "", "edge ", ...says(row.edge, row.edgeScore)),
    isFinal ? make("b", "", `${row.by} `, ...says(row.label, row.score)) : null,
  ];
}

// the hardness of a frame without boxes, positive or negative
const EMPTY_HARDNESS = 1e6;

// why the sample was sent: the numbers that the mining rule compared
function why(row) {
  if (row.hardness === null) return "";
  const isEmpty = row.edgeBoxes && !row.edgeCount && Math.abs(row.hardness) === EMPTY_HARDNESS;
  const hardness = isEmpty ? "no box" : `hardness ${digits(row.hardness)}`;
  return row.cut === null ? hardness : `${hardness}, cut\u00a0${digits(row.cut)}`;
}

/** Return a button with the picture of a hard sample, which opens the viewer. */
function picture(row) {
  const subject = row.file || `a hard sample of camera ${row.camera || "?"}`;
  const button = make("button", "open", framed(thumbnail(row.id, subject), layers(row)));
  button.type = "button";
  button.title = `Enlarge ${subject}`;
  button.addEventListener("click", () => enlarge(row));
  return button;
}

/** Return the lines of text about a hard sample. */
function captions(row) {
  const clock = row.time ? new Date(row.time).toISOString().slice(11, 19) : "";
  return [
    ...answers(row),
    row.by === "edge" ? pill(row.reason || "edge", "warn") : null,
    row.file ? make("bdi", "file", row.file) : null,
    make("span", "dim", [clock && `${clock} UTC`, row.ms && `${short(row.ms)}\u00a0ms`].filter(Boolean).join(" · ")),
    why(row) && make("span", "dim", why(row)),
    make("span", "dim", `${row.service} · `, make("bdi", "", row.camera)),
    make("code", "dim id", row.id),
  ];
}

function sample(row) {
  return make("figure", "sample", picture(row), make("figcaption", "", ...captions(row)));
}

/** Return the boxes of an answer as a list; null without boxes. `kind`: a CSS class. `count`: number of all boxes. */
function boxList(title, kind, boxes, count) {
  if (!boxes) return null;
  const rows = boxes.map((box) => make("li", "", make("bdi", "", String(box[5])), ` ${percent(box[4])}`));
  const more = count > boxes.length ? make("p", "dim", `${number(count - boxes.length)} more are not drawn`) : null;
  return make("div", "", make("h3", `key ${kind}`, title), make("ol", "", ...rows), more);
}

// opens the viewer: the picture in its full size, with the boxes and their labels; later updates do not change it
function enlarge(row) {
  const subject = row.file || `hard sample of camera ${row.camera || "?"}`;
  byId("viewer-content").replaceChildren(
    framed(thumbnail(row.id, subject), layers(row)),
    make("div", "about", ...captions(row)),
    make("div", "lists", boxList("edge", "edge", row.edgeBoxes, row.edgeCount),
      row.by === "edge" ? null : boxList(row.by, "final", row.boxes, row.count)));
  byId("viewer").showModal();
}

function event(row) {
  const time = make("time", "", row.time.slice(11, 19));
  time.dateTime = row.time;
  return make("li", row.type === "Warning" ? "warning" : "", time, pill(row.reason, row.type === "Warning" ? "warn" : "plain"),
    make("span", "about", row.about), make("span", "message", row.message), row.n > 1 ? make("span", "dim", `×${row.n}`) : null);
}

// an estimate {value, low, high} with its confidence interval; empty without one
const share = (estimate, digits = 3) => estimate ? `${estimate.value.toFixed(digits)} (${estimate.low.toFixed(digits)} to ${estimate.high.toFixed(digits)})` : "";

function loop(row) {
  const kind = row.phase === "Withdrawn" || row.phase === "Pending" ? "warn" : "good";
  const describe = (round) => [`round ${round.round}`, round.trigger, round.version, round.reason, round.gain && `gain ${share(round.gain)}`,
    round.before && `agreement ${share(round.before)}`, round.after && `then ${share(round.after)}`].filter(Boolean).join(" · ");
  return make("article", `tile ${kind}`,
    make("h3", "", make("span", "dim", `${row.namespace}/`), row.name, " ", pill(row.phase, kind)),
    make("p", "dim", [`service ${row.service}`, `round ${row.round || 0}`, row.base && `version ${row.base}`,
      row.version && `candidate ${row.version}`, `${row.rolledOut || 0} rolled out`, `${row.refused || 0} refused`].filter(Boolean).join(" · ")),
    row.message ? make("p", "why", `${row.reason}: ${row.message}`) : null,
    ...row.history.map((round) => make("p", "", pill(round.outcome, round.outcome === "RolledOut" ? "good" : "warn"), " ", describe(round))));
}

// the CSS class of a problem's level
const LEVELS = { problem: "bad", warning: "warn", fact: "plain" };

function problem(row) {
  return make("article", `problem ${LEVELS[row.level] || "plain"}`,
    make("h3", "", row.about || row.name, " ", pill(row.level, LEVELS[row.level] || "plain")),
    make("p", "why", row.about ? row.found.slice(row.about.length + 2) : row.found),
    row.follows ? make("p", "dim", row.follows) : null,
    row.do ? make("p", "", row.do) : null,
    row.since ? make("p", "dim", `since ${row.since}`) : null);
}

// what makes the element of a row, by section; a digit key goes to the section at this position
const MAKERS = { services: service, nodes: node, cameras: camera, samples: sample, events: event, loops: loop, problems: problem };

/** Show the rows of a section that match the search field. */
function show(section) {
  const rows = sections[section].filter((row) => !query || JSON.stringify(row).toLowerCase().includes(query));
  byId(`${section}-list`).replaceChildren(...rows.map(MAKERS[section]));
  byId(`${section}-empty`).hidden = rows.length > 0 || sections[section] === UNKNOWN;
  byId(`${section}-title`).dataset.count = rows.length;
}

/** Show the row about GM in the header, and the number of services that do not run well in the title. */
function summary(row) {
  const services = several(row.services, "service");
  const drained = row.drained ? `, ${row.drained} drained` : "";
  const text = `manager ${row.version} · ${row.online} of ${several(row.nodes, "node")} online${drained} · ${services}`;
  byId("summary").replaceChildren(pill(row.broker ? "live" : "no broker", row.broker ? "good" : "bad"), ` ${text}`);
  const bad = sections.services.filter((row) => row.phase !== "Running").length;
  document.title = bad ? `(${bad}) halimede` : "halimede";
}

const stream = new EventSource("/stream");
for (const section of Object.keys(MAKERS)) {
  stream.addEventListener(section, (message) => {
    sections[section] = JSON.parse(message.data);
    show(section);
  });
}
stream.addEventListener("manager", (message) => summary(JSON.parse(message.data)));
stream.addEventListener("error", () => {
  byId("summary").replaceChildren(pill("not connected", "bad"), " trying again; what is shown is the last that was heard");
});

byId("find").addEventListener("input", (change) => {
  query = change.target.value.trim().toLowerCase();
  Object.keys(MAKERS).forEach(show);
});
byId("viewer-close").addEventListener("click", () => byId("viewer").close());
byId("viewer").addEventListener("click", (press) => { if (press.target === byId("viewer")) byId("viewer").close(); });
document.addEventListener("keydown", (press) => {
  if (byId("viewer").open) return;
  if (press.ctrlKey || press.metaKey || press.altKey) return;
  const typing = press.target instanceof HTMLInputElement;
  if (press.key === "Escape" && typing) { press.target.value = ""; press.target.dispatchEvent(new Event("input")); press.target.blur(); }
  if (typing) return;
  if (press.key === "/") { press.preventDefault(); byId("find").focus(); }
  const section = Object.keys(MAKERS)[Number(press.key) - 1];
  if (section) { byId(section).scrollIntoView(); byId(section).focus({ preventScroll: true }); }
});
