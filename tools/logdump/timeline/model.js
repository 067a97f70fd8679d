"use strict";
// Draws the model of a run (see _timeline_model.py). Whatever is in it was written by somebody else:
// it becomes text nodes and strokes on a canvas, never markup.

const $ = (id) => document.getElementById(id);
const M = JSON.parse($("model").textContent);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** An element of this class and with these children; strings become text. */
function el(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

function button(className, text, onclick) {
  const made = el("button", className, text);
  made.type = "button";
  made.onclick = onclick;
  return made;
}

// -- values: a string, or [what there is of it, how much is missing]

const textOf = (value) => (Array.isArray(value) ? value[0] : value ?? "");
const oneLine = (value) => textOf(value).slice(0, 300).replace(/\s*\n\s*/g, " \u00b7 ");

function duration(us) {
  if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 1 : 0)} ms`;
  if (us < 6e7) return `${(us / 1e6).toFixed(us < 1e7 ? 2 : 1)} s`;
  const s = Math.round(us / 1e6);
  const two = (one, large, small, rest) => (rest ? `${one} ${large} ${rest} ${small}` : `${one} ${large}`);
  if (s < 3600) return two(Math.floor(s / 60), "min", "s", s % 60);
  if (s < 86400) return two(Math.floor(s / 3600), "h", "min", Math.floor((s % 3600) / 60));
  return two(Math.floor(s / 86400), "d", "h", Math.floor((s % 86400) / 3600));
}

const number = (value) => value.toLocaleString("en");
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const iso = (us) => new Date(us / 1e3).toISOString().replace("T", " ");

// -- where records are: by index, by time that passed (T), and by time as it is drawn (X)

const RECORDS = M.pauses.length;
const T = new Float64Array(RECORDS + 1), X = new Float64Array(RECORDS + 1);
const drawnAs = new Map(M.breaks);
for (let i = 0, t = 0, x = 0; i < RECORDS; i++) {
  T[i] = t += M.pauses[i];
  X[i] = x += drawnAs.get(i) ?? M.pauses[i];
}
T[RECORDS] = T[RECORDS - 1] ?? 0;
X[RECORDS] = X[RECORDS - 1] ?? 0;

/** The last entry of a sorted list whose key is not above the value; -1 for none. */
function lastUpTo(list, value, key) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The index of a record; of the next one where that LSN is lost. */
function indexOf(lsn) {
  const at = Math.max(0, lastUpTo(M.lsns, lsn, (run) => run[1]));
  const [index, first] = M.lsns[at] ?? [0, 1];
  return clamp(index + lsn - first, 0, (M.lsns[at + 1]?.[0] ?? RECORDS) - (at + 1 < M.lsns.length ? 0 : 1));
}

function lsnAt(index) {
  const [first, lsn] = M.lsns[Math.max(0, lastUpTo(M.lsns, index, (run) => run[0]))] ?? [0, 1];
  return lsn + index - first;
}

/** The clock on the wall at a record, in us since 1970. */
function wallAt(index) {
  let us = M.began + T[index];
  for (const [from, by] of M.setBack) if (from <= index) us -= by;
  return us;
}

const between = (from, to) => T[indexOf(to)] - T[indexOf(from)];

// -- the items: all that can be found, selected and filtered

const items = [];
const calls = M.calls.map((call) => {
  const end = call.phases.at(-1)[2];
  return { type: "call", lsn: call.lsn, from: call.phases[0][1], end, call,
    texts: () => [call.tool, call.id, call.key, call.child, textOf(call.args), textOf(call.result),
      textOf(call.error), textOf(call.traceback), ...(call.history ?? []).map((one) => textOf(one[1]))] };
});
const callAt = new Map(calls.map((item) => [item.lsn, item]));
const inside = new Map(calls.map((item) => [item.lsn, []]));
for (const item of calls) inside.get(item.call.outer)?.push(item);
/** A message in a line, without what stands beside it already. */
const messageLine = (message) =>
  oneLine(textOf(messageText(message)).replace(/^role: .*\n/, "").replace(/^content:\s/, ""));
const messageText = (message) =>
  message.same ? callAt.get(message.call)?.call.result ?? "" : message.text ?? message.lost ?? "";
const messages = M.messages.map((message) => ({ type: "message", lsn: message.lsn, from: message.lsn,
  end: message.lsn, message, texts: () => [message.role, textOf(messageText(message))] }));
const marks = M.marks.map((mark) => ({ type: "mark", lsn: mark.lsn, from: mark.lsn, end: mark.lsn,
  mark, texts: () => [mark.kind, mark.name, textOf(mark.text)] }));
const lives = M.lives.map((life, n) => ({ type: "life", lsn: life.from, from: life.from, end: life.to,
  life, before: M.lives[n - 1], texts: () => [ending(life), `recovery ${life.n}`] }));
const damage = M.damage.map((found) => ({ type: "damage", lsn: found.lost[0] ?? found.lsn,
  from: found.lsn, end: found.lsn, found, texts: () => ["damage", found.text] }));
items.push(...calls, ...messages, ...marks, ...lives, ...damage);
items.sort((one, other) => one.lsn - other.lsn);
const doubtful = calls.filter((item) => item.call.state === "doubt");

function ending(life) {
  const after = `after LSN ${life.to}`;
  if (life.end === "live") return "a process has the run";
  if (life.end !== "gone") return `${life.end} ${after}`;
  return life.cut ? `process died ${after}, ${plural(life.cut, "call")} cut short` : `process ended ${after}`;
}

// -- what is shown: the axis, the part of it, the selection, filters, matches

const state = { byTime: X[RECORDS] > 0, from: 0, to: 1, top: 0, selected: null, matches: [], at: -1,
  tool: "", errors: false, doubt: false };
const axisOf = (index) => (state.byTime ? X[index] : index);
const place = (lsn) => axisOf(indexOf(lsn));
const extent = () => Math.max(axisOf(Math.max(0, RECORDS - 1)), 1);

function passes(item) {
  if (item.type !== "call") return true;
  const call = item.call, failed = call.state === "failed" || call.phases.some((one) => one[0] === "failed");
  if (state.tool && call.tool !== state.tool) return false;
  if (!state.errors && !state.doubt) return true;
  return (state.errors && failed) || (state.doubt && call.state === "doubt");
}
