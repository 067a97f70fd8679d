// The chart: calls in lanes, steps, marks and processes along the time; and moving about in it.

// -- the chart

const gantt = $("gantt"), pen = gantt.getContext("2d");
const lanes = Array.from({ length: M.lanes }, () => []);
for (const item of calls) lanes[item.call.lane]?.push(item);
for (const lane of lanes) lane.sort((one, other) => one.from - other.from);

const ROWS = { time: 22, life: M.lives.length > 1 ? 22 : 0, step: 22, mark: 20 };
const HEAD = ROWS.time + ROWS.life + ROWS.step + ROWS.mark;
const LANE = M.lanes <= 6 ? 30 : M.lanes <= 12 ? 24 : 20;
const PROBLEMS = new Set(["failed", "doubt"]);
let colours = {}, width = 0, height = 0, gutter = 0, pattern = null;

// The tools that are used most have colours of their own.
const uses = new Map();
for (const { call } of calls) uses.set(call.tool, (uses.get(call.tool) ?? 0) + 1);
const toolNames = [...uses.keys()].sort((one, other) => uses.get(other) - uses.get(one) || (one < other ? -1 : 1));
const colourOf = new Map(toolNames.map((tool, n) => [tool, `t${n % 6}`]));

const xOf = (axis) => gutter + ((axis - state.from) / (state.to - state.from)) * (width - gutter);
const axisAt = (x) => state.from + ((x - gutter) / (width - gutter)) * (state.to - state.from);

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "raised", "sunk", "line", "strong", "ink", "soft", "accent", "hit", "red",
    "red-paper", "band", "hatch", "wait", "on-tool", "amber", "t0", "t1", "t2", "t3", "t4", "t5"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  const tile = el("canvas");
  tile.width = tile.height = 6;
  const draw = tile.getContext("2d");
  draw.strokeStyle = colours.hatch;
  draw.beginPath();
  for (const shift of [-6, 0, 6]) { draw.moveTo(shift, 6); draw.lineTo(shift + 6, 0); }
  draw.stroke();
  pattern = pen.createPattern(tile, "repeat");
}

function fit(canvas, wide, high) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(wide * scale);
  canvas.height = Math.round(high * scale);
  canvas.style.height = `${high}px`;
  canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
}

function resize() {
  width = $("chart").clientWidth;
  gutter = width > 700 ? 60 : 0;
  // The lists below need some room, too.
  const room = innerHeight - $("chart").getBoundingClientRect().top - scrollY - 30 - 230;
  const most = clamp(room, HEAD + 4 * LANE, Math.max(HEAD + 4 * LANE, innerHeight * 0.42));
  height = Math.min(most, HEAD + Math.max(2, M.lanes) * LANE + 8);
  fit(gantt, width, height);
  fit($("map-canvas"), width, 30);
  readColours();
  drawMap();
  draw();
}

let asked = false;
function draw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; drawNow(); });
}

function drawNow() {
  pen.clearRect(0, 0, width, height);
  pen.textBaseline = "middle";
  pen.save();
  pen.beginPath();
  pen.rect(gutter, 0, width - gutter, height);
  pen.clip();
  drawSteps();
  drawTicks();
  drawGaps();
  drawCalls();
  drawMarks();
  drawLives();
  drawDamage();
  pen.restore();
  drawGutter();
  drawScroll();
  const [left, right] = [state.from, state.to].map((axis) => gutter + (axis / extent()) * (width - gutter));
  $("window").style.left = `${clamp(left, gutter, width - 4)}px`;
  $("window").style.width = `${Math.max(4, Math.min(right, width) - Math.max(left, gutter))}px`;
}

/** How far down the lanes are, where there are more than fit. */
function drawScroll() {
  const seen = height - HEAD, all = M.lanes * LANE + 8;
  if (all <= seen) return;
  pen.fillStyle = colours.line;
  pen.fillRect(width - 8, HEAD, 8, seen);
  pen.fillStyle = colours.soft;
  pen.fillRect(width - 7, HEAD + (state.top / all) * seen, 6, (seen / all) * seen);
}

/** Text that ends with dots where there is no room for it. */
function label(text, x, y, room, colour, font = "12px system-ui, sans-serif") {
  if (room < 14) return;
  pen.font = font;
  pen.fillStyle = colour;
  if (pen.measureText(text).width > room) {
    let count = Math.floor((text.length * room) / pen.measureText(text).width);
    while (count > 0 && pen.measureText(`${text.slice(0, count)}\u2026`).width > room) count--;
    if (count < 1) return;
    text = `${text.slice(0, count)}\u2026`;
  }
  pen.fillText(text, x, y);
}

function line(x, top, bottom, colour, dash = []) {
  pen.strokeStyle = colour;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(Math.round(x) + 0.5, top);
  pen.lineTo(Math.round(x) + 0.5, bottom);
  pen.stroke();
  pen.setLineDash([]);
}

function drawGutter() {
  if (!gutter) return;
  let y = 0;
  for (const [name, high] of Object.entries(ROWS)) {
    if (high) label(name === "mark" ? "marks" : name === "time" && !state.byTime ? "LSN" : name,
      10, y + high / 2, gutter - 12, colours.soft, "11px system-ui, sans-serif");
    y += high;
  }
  label("calls", 10, HEAD + LANE / 2, gutter - 12, colours.soft, "11px system-ui, sans-serif");
  line(gutter - 1, 0, height, colours.line);
}

function drawSteps() {
  const y = ROWS.time + ROWS.life;
  let until = -1;
  M.steps.forEach(([step, lsn], n) => {
    const left = xOf(place(lsn)), next = M.steps[n + 1];
    const right = next ? xOf(place(next[1])) : xOf(extent());
    if (right < gutter || left > width) return;
    if (n % 2 && right - left > 2) {
      pen.fillStyle = colours.band;
      pen.fillRect(left, y, Math.max(right - left, 0.5), height - y);
    }
    const text = String(step), from = Math.max(left, gutter) + 4;
    if (from > until && (left > gutter - 8 || right - from > 8 * text.length)) {
      label(text, from, y + ROWS.step / 2, 60, colours.soft);
      until = from + 8 * text.length + 8;
    }
  });
  pen.fillStyle = colours.line;
  pen.fillRect(0, y, width, 1);
  pen.fillRect(0, y + ROWS.step, width, 1);
  pen.fillRect(0, HEAD - 1, width, 1);
}

const STEPS_US = [1, 2, 5, 10, 20, 50, 100, 200, 500].flatMap((n) => [n, n * 1e3])
  .concat([1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 604800]
    .map((s) => s * 1e6)).sort((a, b) => a - b);

function clock(us, step) {
  const text = new Date(us / 1e3).toISOString();
  if (step >= 86400e6) return text.slice(0, 10);
  if (step >= 60e6) return text.slice(11, 16);
  return step >= 1e6 ? text.slice(11, 19) : text.slice(14, 23);
}

/** Ticks: LSNs, or the clock on the wall (UTC) wherever time is drawn to scale. */
function drawTicks() {
  const perPixel = (state.to - state.from) / (width - gutter);
  const tick = (x, text) => {
    line(x, ROWS.time - 5, height, colours.line);
    label(text, x + 4, ROWS.time / 2, 120, colours.soft, "11px system-ui, sans-serif");
  };
  if (!state.byTime) {
    const step = Math.max(1, 10 ** Math.ceil(Math.log10(perPixel * 70)));
    for (let i = Math.max(0, Math.ceil(state.from / step) * step); i <= state.to; i += step) {
      if (i < RECORDS) tick(xOf(i), String(lsnAt(i)));
    }
    return;
  }
  const step = STEPS_US.find((one) => one / perPixel > 92) ?? 604800e6;
  let until = -1;
  const ends = [...M.breaks, ...M.setBack].map(([index]) => index).sort((a, b) => a - b).concat(RECORDS);
  ends.forEach((end, n) => {
    const first = n ? ends[n - 1] : 0, last = end - 1;
    if (X[last] < state.from || X[first] > state.to) return;
    const began = wallAt(first), from = began + Math.max(0, state.from - X[first]);
    const to = began + Math.min(X[last], state.to) - X[first];
    for (let us = Math.ceil(from / step) * step; us <= to; us += step) {
      const x = xOf(X[first] + us - began);
      if (x > until) {
        tick(x, clock(us, step));
        until = x + 84;
      }
    }
  });
}

/** Waits that are too long to be drawn to scale: a hatched strip that says how long. */
function drawGaps() {
  if (!state.byTime) return;
  for (const [index] of M.breaks) {
    const left = xOf(X[index - 1]), right = xOf(X[index]);
    if (right < gutter || left > width) continue;
    pen.fillStyle = colours.sunk;
    pen.fillRect(left, HEAD, right - left, height - HEAD);
    pen.fillStyle = pattern;
    pen.globalAlpha = 0.35;
    pen.fillRect(left, HEAD, right - left, height - HEAD);
    pen.globalAlpha = 1;
    const text = duration(M.pauses[index]);
    pen.font = "11px system-ui, sans-serif";
    const wide = pen.measureText(text).width;
    if (right - left > wide + 4) {
      pen.fillStyle = colours.sunk;
      pen.fillRect((left + right - wide) / 2 - 2, height - 21, wide + 4, 16);
      label(text, (left + right - wide) / 2, height - 13, wide + 2, colours.soft, "11px system-ui, sans-serif");
    }
  }
}

const yOf = (lane) => HEAD + 4 + lane * LANE - state.top;

function drawCalls() {
  pen.save();
  pen.beginPath();
  pen.rect(gutter, HEAD, width - gutter, height - HEAD);
  pen.clip();
  const found = new Set(state.matches);
  lanes.forEach((lane, n) => {
    const y = yOf(n);
    if (y + LANE < HEAD || y > height) return;
    let drawn = -1; // of calls that are narrower than a pixel, one is enough
    for (let i = Math.max(0, firstEnding(lane, state.from)); i < lane.length; i++) {
      const item = lane[i], left = xOf(place(item.from)), right = xOf(place(item.end));
      if (left > width) break;
      const matters = PROBLEMS.has(item.call.state) || item === state.selected || found.has(item);
      if (right - left < 1 && left - drawn < 1 && !matters) continue;
      drawn = left;
      drawCall(item, y, found.has(item));
    }
  });
  pen.restore();
}

/** Of a lane, the first call that does not end before this place. Calls in a lane do not overlap. */
function firstEnding(lane, axis) {
  return Math.max(0, lastUpTo(lane, axis, (item) => place(item.from)));
}

function drawCall(item, y, found) {
  const { call } = item, high = LANE - 6, doubt = call.state === "doubt";
  const fill = doubt ? colours.red : colours[colourOf.get(call.tool)];
  pen.globalAlpha = passes(item) ? 1 : 0.15;
  let first = null;
  for (const [what, from, to] of call.phases) {
    const left = xOf(place(from)), right = Math.max(xOf(place(to)), left + 2);
    if (right < gutter || left > width) continue;
    const x = Math.max(left, gutter - 4), wide = Math.min(right, width + 4) - x;
    if (what === "lost") {
      line2(x, y + high / 2, wide, doubt ? colours.red : colours.hatch);
      continue;
    }
    if (first === null || (first[1] < 30 && wide > first[1])) first = [x, wide];
    drawPhase(what, x, y, wide, high, fill);
  }
  if (doubt) line2(xOf(place(item.end)), y + high / 2, width, colours.red);
  const [, from, to] = call.phases.at(-1);
  if (call.state === "failed" && xOf(place(to)) - xOf(place(from)) > 16) glyph(xOf(place(to)), y, high, "\u2715", colours.red);
  if (found) {
    pen.fillStyle = colours.hit;
    pen.fillRect(xOf(place(item.from)), y + high, Math.max(xOf(place(item.end)) - xOf(place(item.from)), 4), 4);
  }
  if (item === state.selected) {
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 2;
    const left = xOf(place(item.from));
    pen.strokeRect(left - 1.5, y - 1.5, Math.max(xOf(place(item.end)) - left, 3) + 3, high + 3);
    pen.lineWidth = 1;
  }
  if (first && first[1] > 22) nameCall(item, first, y, high);
  pen.globalAlpha = 1;
}

function drawPhase(what, x, y, wide, high, fill) {
  pen.fillStyle = what === "wait" ? colours.wait : fill;
  const dim = what === "left" ? 0.45 : 1;
  pen.globalAlpha *= dim;
  pen.beginPath();
  if (what === "cut" && wide > 8) { // torn off
    pen.moveTo(x, y);
    pen.lineTo(x + wide, y);
    for (let k = 1; k <= 4; k++) pen.lineTo(x + wide - (k % 2 ? 5 : 0), y + (high * k) / 4);
    pen.lineTo(x, y + high);
  } else {
    pen.roundRect(x, y, wide, high, Math.min(3, wide / 2));
  }
  pen.fill();
  if (what === "wait") {
    pen.fillStyle = pattern;
    pen.globalAlpha *= 0.55;
    pen.fill();
    pen.globalAlpha /= 0.55;
  }
  pen.globalAlpha /= dim;
  if (what === "failed") {
    pen.fillStyle = colours.red;
    pen.fillRect(x, y + high - 3, wide, 3);
  }
}

/** The tool of a call and how long it took, or as much of that as there is room for. */
function nameCall(item, [x, wide], y, high) {
  const { call } = item, doubt = call.state === "doubt", from = Math.max(x, gutter) + 6;
  const room = x + wide - from - (call.state === "failed" ? 14 : 5);
  const ink = doubt ? colours.paper : call.phases[0][0] === "wait" ? colours.ink : colours["on-tool"];
  const name = call.attempts ? `\u21bb${call.attempts} ${call.tool}` : call.tool;
  const took = `${name}   ${duration(between(item.from, item.end))}`;
  const texts = doubt ? [`? in doubt: ${name}`, `? ${name}`, "?"] : [took, name];
  pen.font = `${doubt ? "600 " : ""}12px system-ui, sans-serif`;
  const text = texts.find((one) => pen.measureText(one).width <= room) ?? texts.at(-1);
  label(text, from, y + high / 2, Math.max(room, doubt ? 14 : 0), ink, pen.font);
}

function line2(x, y, wide, colour) {
  pen.strokeStyle = colour;
  pen.setLineDash([2, 3]);
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + wide, y);
  pen.stroke();
  pen.setLineDash([]);
}

function glyph(right, y, high, text, colour) {
  pen.font = "700 11px system-ui, sans-serif";
  pen.fillStyle = colour;
  pen.fillText(text, right - 12, y + high / 2);
}

function drawMarks() {
  const y = ROWS.time + ROWS.life + ROWS.step + ROWS.mark / 2;
  let drawn = {};
  for (const item of [...marks, ...messages]) {
    const x = xOf(place(item.lsn)), kind = item.type === "message" ? "message" : item.mark.kind;
    if (x < gutter || x > width || (Math.round(x) === drawn[kind] && item !== state.selected)) continue;
    drawn[kind] = Math.round(x);
    pen.fillStyle = item === state.selected ? colours.accent : ["run_failed", "agent_raised"].includes(kind) ? colours.red
      : kind === "snapshot" ? colours.ink : colours.hatch;
    pen.beginPath();
    if (kind === "snapshot") { // a checkpoint
      pen.moveTo(x - 4, y + 4);
      pen.lineTo(x + 4, y + 4);
      pen.lineTo(x, y - 5);
    } else if (kind === "message") {
      pen.arc(x, y, 2.2, 0, 7);
    } else {
      pen.rect(x - 3, y - 3, 6, 6);
    }
    pen.fill();
  }
}

/** Each process that had the run: a band, and a line where it ended and the next one began. */
function drawLives() {
  if (!ROWS.life) return;
  const y = ROWS.time;
  lives.forEach((item, n) => {
    const { life } = item, left = xOf(place(life.from)), right = xOf(place(life.to));
    if (n) {
      line(left, y, height, colours.ink);
      const old = xOf(place(item.before.to));
      line(old, y, height, item.before.end === "gone" ? colours.red : colours.ink, [4, 3]);
    }
    const next = lives[n + 1], limit = next ? xOf(place(next.life.from)) : width;
    const from = Math.max(left, gutter);
    pen.fillStyle = colours.band;
    pen.fillRect(left, y + 2, Math.max(right - left, 2), ROWS.life - 4);
    const text = `${life.n ? `recovery ${life.n}` : "began"} \u2192 ${ending(life)}`;
    label(text, from + 5, y + ROWS.life / 2, limit - from - 8, life.cut ? colours.red : colours.ink);
  });
}

function drawDamage() {
  for (const item of damage) {
    const { found } = item, after = Math.min(found.i, RECORDS - 1);
    const left = xOf(axisOf(found.before)), right = Math.max(xOf(axisOf(after)), left + 8);
    if (right < gutter || left > width) continue;
    pen.fillStyle = colours["red-paper"];
    pen.globalAlpha = 0.85;
    pen.fillRect(left, HEAD, right - left, height - HEAD);
    pen.globalAlpha = 1;
    pen.fillStyle = pattern;
    pen.fillRect(left, HEAD, right - left, height - HEAD);
    line(left, 0, height, colours.red);
    line(right, 0, height, colours.red);
    pen.fillStyle = colours.red;
    const text = found.lost.length ? `LSN ${[...new Set(found.lost)].join("\u2013")} lost` : "damage";
    pen.font = "600 12px system-ui, sans-serif";
    const wide = pen.measureText(text).width + 12, x = clamp(left, gutter, width - wide);
    pen.fillRect(x, height - 22, wide, 20);
    label(text, x + 6, height - 12, wide, colours.paper, "600 12px system-ui, sans-serif");
  }
}

function drawMap() {
  const map = $("map-canvas").getContext("2d"), wide = width - gutter, scale = wide / extent();
  map.clearRect(0, 0, width, 30);
  const each = 22 / Math.max(1, M.lanes);
  const drawOne = (item, least, colour, top, high) => {
    map.globalAlpha = passes(item) ? 1 : 0.15;
    map.fillStyle = colour;
    map.fillRect(gutter + place(item.from) * scale, top,
      Math.max(least, (place(item.end) - place(item.from)) * scale), high);
  };
  for (const item of calls) drawOne(item, 1, colours.hatch, 4 + item.call.lane * each, clamp(each * 0.8, 1, 6));
  for (const item of calls) {
    if (item.call.state === "failed") drawOne(item, 2, colours.red, 26, 4);
    if (item.call.state === "doubt") drawOne({ ...item, end: item.from }, 4, colours.red, 0, 30);
  }
  map.globalAlpha = 1;
  map.fillStyle = colours.hit;
  for (const item of state.matches) map.fillRect(gutter + place(item.from) * scale, 26, 2, 4);
  map.fillStyle = colours.red;
  for (const item of damage) map.fillRect(gutter + place(item.lsn) * scale, 0, 3, 30);
  map.fillStyle = colours.ink;
  for (const { life } of lives.slice(1)) map.fillRect(gutter + place(life.from) * scale, 0, 1, 30);
}

// -- moving about

function show(from, to) {
  const most = extent() * 1.02, least = state.byTime ? Math.min(20, most) : 4;
  const wide = clamp(to - from, least, most), start = clamp(from, -0.01 * extent(), most - wide);
  state.from = start;
  state.to = start + wide;
  draw();
}

function zoom(factor, at = (state.from + state.to) / 2) {
  show(at - (at - state.from) * factor, at + (state.to - at) * factor);
}

const showAll = () => show(-0.01 * extent(), 1.01 * extent());
const pan = (pixels) => {
  const by = (pixels / (width - gutter)) * (state.to - state.from);
  show(state.from + by, state.to + by);
};

function scrollLanes(pixels) {
  state.top = clamp(state.top + pixels, 0, Math.max(0, M.lanes * LANE + 8 - (height - HEAD)));
  draw();
}

/** Bring an item into the part that is shown; a call that would be too narrow is zoomed to. */
function reveal(item) {
  const from = place(item.from), to = place(item.end), wide = state.to - state.from;
  const around = Math.max(40 * (to - from), state.byTime ? extent() / 200 : 30);
  const narrow = item.type === "call" && ((to - from) / wide) * width < 3 && wide > 3 * around;
  if (narrow) show(from - around, to + around);
  else if (from < state.from || to > state.to) show((from + to - wide) / 2, (from + to + wide) / 2);
  if (item.type === "call") {
    const y = yOf(item.call.lane);
    if (y < HEAD || y + LANE > height) scrollLanes(y - HEAD - LANE);
  }
  draw();
}

function setAxis(byTime) {
  const middle = state.selected ? indexOf(state.selected.from) : null;
  const share = (state.to - state.from) / extent();
  state.byTime = byTime;
  $("by-time").setAttribute("aria-checked", byTime);
  $("by-record").setAttribute("aria-checked", !byTime);
  const wide = share * extent();
  if (middle === null || share >= 1) showAll();
  else show(axisOf(middle) - wide / 2, axisOf(middle) + wide / 2);
  drawMap();
}

/** The item under a point of the chart. */
function hit(x, y) {
  if (x < gutter) return null;
  const near = (list) => list.reduce((best, item) => {
    const away = Math.abs(xOf(place(item.lsn)) - x);
    return away < 7 && (!best || away < best[0]) ? [away, item] : best;
  }, null)?.[1] ?? null;
  if (y < ROWS.time) return null;
  if (ROWS.life && y < ROWS.time + ROWS.life) {
    return lives.findLast((item) => xOf(place(item.from)) <= x) ?? null;
  }
  if (y < HEAD) return y > HEAD - ROWS.mark ? near([...marks, ...messages]) : null;
  const lane = lanes[Math.floor((y - HEAD - 4 + state.top) / LANE)] ?? [];
  const last = lastUpTo(lane, axisAt(x + 3), (item) => place(item.from));
  for (const item of [lane[last], lane[last - 1]]) {
    if (item && xOf(place(item.end)) >= x - 4) return item;
  }
  return damage.find((item) => Math.abs(xOf(axisOf(Math.min(item.found.i, RECORDS - 1))) - x) < 12) ?? null;
}

const pointers = new Map();
let dragged = 0;

function spot(event) {
  const box = gantt.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

gantt.onpointerdown = (event) => {
  gantt.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, spot(event));
  dragged = 0;
};
gantt.onpointermove = (event) => {
  const [x, y] = spot(event), before = pointers.get(event.pointerId);
  if (!before) return hover(x, y);
  if (pointers.size === 2) { // two fingers
    const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
    zoom(Math.abs(before[0] - other[0]) / Math.max(8, Math.abs(x - other[0])), axisAt((x + other[0]) / 2));
  } else {
    pan(before[0] - x);
    scrollLanes(before[1] - y);
  }
  dragged += Math.abs(x - before[0]) + Math.abs(y - before[1]);
  gantt.classList.toggle("drag", dragged > 4);
  pointers.set(event.pointerId, [x, y]);
};
gantt.onpointerup = gantt.onpointercancel = (event) => {
  pointers.delete(event.pointerId);
  gantt.classList.remove("drag");
  if (event.type === "pointerup" && dragged <= 4) select(hit(...spot(event)));
};
gantt.onpointerleave = () => { $("tip").hidden = true; };
gantt.ondblclick = (event) => {
  const item = hit(...spot(event));
  if (item?.type === "call") {
    const wide = Math.max(place(item.end) - place(item.from), 4);
    show(place(item.from) - wide / 4, place(item.end) + wide / 4);
  }
};
gantt.onwheel = (event) => {
  event.preventDefault();
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX || event.deltaY);
  else if (event.altKey || spot(event)[0] > width - 12) scrollLanes(event.deltaY);
  else zoom(Math.exp(clamp(event.deltaY, -200, 200) / 400), axisAt(spot(event)[0]));
};

function hover(x, y) {
  const item = hit(x, y), tip = $("tip");
  gantt.classList.toggle("hand", item !== null);
  tip.hidden = item === null;
  if (item === null) return;
  tip.textContent = describe(item);
  tip.style.left = `${clamp(x + 14, 0, Math.max(0, width - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 48}px`;
}

function describe(item) {
  switch (item.type) {
    case "call":
      return `${item.call.tool} ${item.call.id ?? ""}\nLSN ${item.lsn}, ${M.states[item.call.state]}, ${
        duration(between(item.from, item.end))}\n${oneLine(item.call.args).slice(0, 160)}`;
    case "message": return `message, LSN ${item.lsn}\n${messageLine(item.message).slice(0, 160)}`;
    case "life": return `${ending(item.life)}${item.before ? `\nthe one before: ${ending(item.before)}` : ""}`;
    case "damage": return item.found.text;
    default: return `${item.mark.name ?? item.mark.kind}, LSN ${item.lsn}\n${oneLine(item.mark.text)}`;
  }
}

function dragMap(event) {
  if (event.type === "pointerdown") $("map").setPointerCapture(event.pointerId);
  if (!event.buttons) return;
  const at = ((event.clientX - $("map").getBoundingClientRect().left - gutter) / (width - gutter)) * extent();
  const half = (state.to - state.from) / 2;
  show(at - half, at + half);
}
$("map").onpointerdown = $("map").onpointermove = dragMap;
