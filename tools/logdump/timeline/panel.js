// What is known of whatever is selected, and the lists.

// -- the panel: all that is known of what is selected

function select(item, quietly = false) {
  const before = state.selected;
  state.selected = item;
  rowsOf(before).forEach((row) => row.classList.remove("on"));
  rowsOf(item).forEach((row) => row.classList.add("on"));
  const panel = $("panel");
  panel.replaceChildren(...(item ? PANELS[item.type](item) : welcome()));
  panel.scrollTop = 0;
  if (!quietly && item && location.hash !== `#lsn=${item.lsn}`) location.replace(`#lsn=${item.lsn}`);
  draw();
}

function go(item) {
  if (!item) return;
  select(item);
  reveal(item);
  list.reveal(item);
}

/** A value with what was searched for marked, and how much of it is missing. */
function valueOf(value, lsn) {
  const box = el("pre");
  highlight(textOf(value), box);
  if (!Array.isArray(value)) return [box];
  const where = value[0] ? "more characters" : "bytes, too much to be shown here";
  return [box, el("p", "cut", `\u2026 ${number(value[1])} ${where}: logdump dump --full --lsn ${lsn}`)];
}

function highlight(text, box) {
  const query = $("query").value.trim().toLowerCase(), folded = text.toLowerCase();
  let at = 0;
  if (query && folded.length === text.length) {
    for (let found; (found = folded.indexOf(query, at)) >= 0; at = found + query.length) {
      box.append(text.slice(at, found), el("mark", "", text.slice(found, found + query.length)));
    }
  }
  box.append(text.slice(at));
}

const section = (title, ...children) => [el("h3", "", title), ...children];
const toLsn = (lsn, text = `LSN ${lsn}`) => button("link", text, () => go(itemAt(lsn)));

function facts(pairs) {
  const list = el("dl");
  for (const [name, value] of pairs) {
    if (value !== null && value !== undefined && value !== "") {
      list.append(el("dt", "", name), el("dd", "", ...(Array.isArray(value) ? value : [String(value)])));
    }
  }
  return list;
}

const PHASE = { work: "at work", wait: "waiting", failed: "attempt failed", cut: "at work, cut short",
  lost: "nobody knows, or nobody works on it", left: "nobody waits for it" };

// What to type, once somebody has found out. A log may have more to say: that is what show shows.
const RUN = /^[\w.+-]+$/.test(M.run.run_id) ? M.run.run_id : "RUN";
const resolving = (call) => !call.key ? [] : section("To resolve it", el("pre", "commands",
  [...["--outcome JSON", "--retry", "--fail TEXT"].map((how) =>
    `recovery resolve ${RUN} ${call.key.slice(0, 16)} ${how}`), `recovery show ${RUN}`].join("\n")));

const PANELS = {
  call(item) {
    const { call } = item, children = inside.get(item.lsn) ?? [];
    const spent = (what) => call.phases.filter((one) => what.includes(one[0]))
      .reduce((sum, [, from, to]) => sum + between(from, to), 0);
    const parts = [el("h2", "", call.tool, el("span", `badge ${call.state}`, M.states[call.state]))];
    if (call.state === "doubt") {
      parts.push(el("p", "bad-box", el("b", "", "In doubt: "), "it was begun, and nothing says how it ended. ",
        call.then ? `A recovery ${call.then}.` : ""), ...resolving(call));
    }
    parts.push(facts([
      ["LSN", [toLsn(call.lsn, String(call.lsn)), ...(call.end ? [" to ", toLsn(call.end, String(call.end))] : [])]],
      ["step", call.step ?? "before the first"],
      ["call id", call.id],
      ["began", call.earlier ? "before what is shown" : `${iso(wallAt(indexOf(item.from)))}`],
      ["took", `${call.end ? "" : "at least "}${duration(between(item.from, item.end))}`],
      ["of which", call.phases.length > 1 ? [["work", "failed", "cut", "left"], ["wait"], ["lost"]]
        .map((what) => [what, spent(what)]).filter((one) => one[1])
        .map(([what, us]) => `${PHASE[what[0]]} ${duration(us)}`).join(", ") : ""],
      ["attempts", call.attempts],
      ["approval", call.asks ? "somebody has to approve it" : ""],
      ["after a crash", call.after],
      ["key", call.key ? [el("code", "", call.key)] : ""],
      ["tokens", call.tokens ? `${number(call.tokens[0])} in, ${number(call.tokens[1])} out` : ""],
      ["cost", call.cost],
      ["child run", call.child],
      ["inside of", call.outer ? [toLsn(call.outer, callAt.get(call.outer)?.call.tool)] : ""],
      ["dropped", call.dropped ? "the code may do without it since LSN " + call.dropped : ""],
    ]));
    if (!call.earlier) {
      parts.push(...(call.args === undefined || call.args === null
        ? section("Arguments", el("p", "hint", `${number(call.size ?? 0)} bytes, recorded by digest only`))
        : section("Arguments", ...valueOf(call.args || "none", call.lsn))));
    }
    if (call.result !== undefined) parts.push(...section("Result", ...valueOf(call.result, call.end)));
    if (call.error !== undefined) parts.push(...section("Error", ...valueOf(call.error, call.end)));
    if (call.traceback) parts.push(...section("Traceback", ...valueOf(call.traceback, call.end)));
    if (call.history) parts.push(...section("History", historyOf(call)));
    if (children.length) {
      parts.push(...section(`Calls inside (${number(children.length)})`, el("ol", "", ...children.slice(0, 100)
        .map((one) => el("li", "", toLsn(one.lsn, one.call.tool), ` ${M.states[one.call.state]}`)))));
    }
    return parts;
  },

  message(item) {
    const { message } = item;
    return [
      el("h2", "", "message", ...(message.role ? [el("span", "badge", message.role)] : [])),
      facts([["LSN", item.lsn], ["step", message.step], ["recorded", iso(wallAt(indexOf(item.lsn)))],
        ["from", message.call ? [toLsn(message.call, `what ${callAt.get(message.call)?.call.tool} returned`)] : ""],
        ["removed", message.removed ? [toLsn(message.removed)] : ""]]),
      ...section(message.lost ? "Lost" : "Message", ...valueOf(messageText(message), item.lsn)),
    ];
  },

  mark(item) {
    const { mark } = item;
    return [el("h2", "", mark.name ?? mark.kind.replaceAll("_", " ")),
      facts([["LSN", item.lsn], ["kind", mark.kind], ["step", mark.step], ["recorded", iso(wallAt(indexOf(item.lsn)))]]),
      ...section("Recorded", ...valueOf(mark.text, item.lsn))];
  },

  life(item) {
    const { life, before } = item;
    const away = before ? T[indexOf(life.from)] - T[indexOf(before.to)] : 0;
    return [el("h2", "", life.n ? `recovery ${life.n}` : "the first process"),
      facts([["LSN", [toLsn(life.from, String(life.from)), " to ", toLsn(life.to, String(life.to))]],
        ["before it", before ? ending(before) : ""],
        ["away for", before ? duration(away) : ""],
        ["resumed", before ? `from the end of step ${life.step}` : ""],
        ["had the run", duration(T[indexOf(life.to)] - T[indexOf(life.from)])],
        ["in the end", ending(life)]])];
  },

  damage(item) {
    const { found } = item;
    return [el("h2", "", "damage", el("span", "badge failed", found.lost.length ? "records lost" : "nothing lost")),
      facts([["LSN", [...new Set(found.lost)].join(" to ") || found.lsn]]), ...section("What is wrong", ...valueOf(found.text))];
  },
};

function historyOf(call) {
  const list = el("ol");
  for (const [lsn, text, more] of call.history) {
    list.append(el("li", "", `LSN ${lsn}: ${textOf(text)}`, ...(more ? [el("details", "",
      el("summary", "", "traceback"), ...valueOf(more, lsn))] : [])));
  }
  return list;
}

function welcome() {
  const keys = [["/", "search"], ["n p", "next and previous match"], ["\u2190 \u2192", "from call to call"],
    ["\u2191 \u2193", "to the lane above and below"], ["+ \u2212", "zoom, or the mouse wheel"],
    ["0", "show all"], ["t", "by time, or by records"], ["Esc", "close"]];
  const signs = [["hatched", "waiting: for a time, a signal, a yes, the next attempt"],
    ["torn edge", "its process died"], ["dotted", "nobody works on it"], ["underlined", "an attempt that failed"],
    ["\u25b2 \u25cf \u25a0", "checkpoint, message, other records"]];
  return [el("p", "hint", "Select a call, a mark or a message to see all of it."),
    el("dl", "", ...signs.flatMap(([sign, what]) => [el("dt", "", sign), el("dd", "", what)])),
    el("h2", "keys", "Keys"), el("dl", "keys", ...keys.flatMap(([key, what]) => [el("dt", "", ...key.split(" ").map((one) => el("kbd", "", one))),
      el("dd", "", what)]))];
}

// -- lists: rows are made when they come near

class List {
  static BLOCK = 100;

  constructor(box, rows, make) {
    this.box = box;
    this.rows = rows;
    this.make = make;
    this.made = new Map();
    this.blocks = [];
    this.watch = new IntersectionObserver((seen) => {
      for (const one of seen) if (one.isIntersecting) this.fill(this.blocks.indexOf(one.target));
    }, { root: null, rootMargin: "600px" });
    for (let i = 0; i < rows.length; i += List.BLOCK) {
      const block = el("div");
      block.style.minHeight = `${Math.min(List.BLOCK, rows.length - i) * 31}px`;
      this.blocks.push(block);
      this.watch.observe(block);
    }
    box.replaceChildren(...this.blocks);
    if (!rows.length) box.replaceChildren(el("p", "row hint", "There are none."));
  }

  fill(n) {
    const block = this.blocks[n];
    if (!block || block.firstChild) return;
    this.watch.unobserve(block);
    const from = n * List.BLOCK;
    this.rows.slice(from, from + List.BLOCK).forEach((item) => {
      const row = this.make(item);
      this.made.set(item, row);
      if (item === state.selected) row.classList.add("on");
      if (matched.has(item)) row.classList.add("hit");
      block.append(row);
    });
    block.style.minHeight = "";
  }

  reveal(item) {
    const at = this.rows.indexOf(item);
    if (at < 0) return;
    this.fill(Math.floor(at / List.BLOCK));
    this.made.get(item).scrollIntoView({ block: "nearest" });
  }

  close() { this.watch.disconnect(); }
}

let matched = new Set();
let list = null;
const rowsOf = (item) => [list?.made.get(item)].filter(Boolean);

function callRow(item) {
  const { call } = item;
  const text = oneLine(call.error ?? call.args) || (call.earlier ? "\u2026" : `${plural(call.size ?? 0, "byte")} of arguments`);
  const row = button("", "", () => { select(item); reveal(item); });
  row.append(el("span", "lsn", String(item.lsn)), el("span", "who", call.tool), el("span", "line", text),
    el("span", "took", call.state === "done" ? duration(between(item.from, item.end)) : M.states[call.state]));
  return el("div", `row ${call.state}`, row);
}

function messageRow(item) {
  const { message } = item, head = el("summary", "",
    el("span", "lsn", String(item.lsn)), el("span", "who", message.role ?? "message"),
    el("span", "line", messageLine(message)),
    el("span", "took", message.removed ? `removed at ${message.removed}` : message.step ? `step ${message.step}` : ""));
  const row = el("details", `row${message.removed ? " gone" : ""}`, head);
  row.ontoggle = () => {
    if (!row.open || row.children.length > 1) return;
    row.append(el("div", "more", ...valueOf(messageText(message), item.lsn),
      ...(message.call ? [toLsn(message.call, `what ${callAt.get(message.call)?.call.tool} returned, LSN ${message.call}`)]
        : [])));
  };
  head.onclick = () => { select(item); reveal(item); };
  return row;
}

function rest(item) {
  const who = item.type === "life" ? (item.life.n ? `recovery ${item.life.n}` : "began")
    : item.type === "damage" ? "damage" : item.mark.name ?? item.mark.kind;
  const text = item.type === "life" ? ending(item.life) : item.type === "damage" ? item.found.text : oneLine(item.mark.text);
  const row = button("", "", () => { select(item); reveal(item); });
  row.append(el("span", "lsn", String(item.lsn)), el("span", "who", who), el("span", "line", text), el("span", "took", ""));
  return el("div", `row ${item.type === "damage" ? "failed" : ""}`, row);
}

const byLsn = (rows) => rows.sort((one, other) => one.lsn - other.lsn);
const TABS = [
  ["Conversation", messages, messageRow],
  ["Calls", calls, callRow],
  ["Marks", byLsn([...marks, ...lives, ...damage]), rest],
];

function openTab(n) {
  [...$("tabs").children].forEach((tab, i) => tab.setAttribute("aria-selected", i === n));
  list?.close();
  const [, rows, make] = TABS[n];
  list = new List($("list"), rows.filter(passes), make);
}
