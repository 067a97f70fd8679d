// Search, filters, keys, and how it all begins.

// -- search and filters

function search() {
  const query = $("query").value.trim().toLowerCase();
  for (const item of items) item.folded ??= item.texts().filter(Boolean).join("\n").toLowerCase();
  const wanted = Number(query.replace(/^lsn\s*[=#]?\s*/, ""));
  state.matches = query ? items.filter((item) => passes(item) && (item.folded.includes(query) || item.lsn === wanted)) : [];
  matched = new Set(state.matches);
  state.at = -1;
  for (const [item, row] of list.made) row.classList.toggle("hit", matched.has(item));
  $("count").textContent = query ? plural(state.matches.length, "match").replace("matchs", "matches") : "";
  if (state.selected) select(state.selected, true);
  drawMap();
  draw();
}

function step(by) {
  const { matches } = state;
  const among = matches.length ? matches : items.filter((item) => item.type === "damage"
    || (item.type === "call" && PROBLEMS.has(item.call.state))); // without a search: from problem to problem
  if (!among.length) return;
  state.at = (state.at + by + (state.at < 0 && by < 0 ? 1 : 0) + among.length) % among.length;
  $("count").textContent = `${number(state.at + 1)} of ${number(among.length)}`;
  const item = among[state.at], tab = TABS.findIndex(([, rows]) => rows.includes(item));
  if (tab >= 0 && !list.rows.includes(item)) openTab(tab);
  go(item);
}

function filter() {
  state.tool = $("tool").value;
  state.errors = $("errors").checked;
  state.doubt = $("doubt").checked;
  openTab(Math.max(state.tool || state.errors || state.doubt ? 1 : 0, 0));
  search();
}

function walk(by) {
  const shown = calls.filter(passes);
  if (!shown.length) return;
  const at = state.selected ? lastUpTo(shown, state.selected.lsn, (item) => item.lsn) : by > 0 ? -1 : shown.length;
  go(shown[clamp(at + by, 0, shown.length - 1)]);
}

function climb(by) {
  const item = state.selected;
  if (item?.type !== "call") return walk(1);
  for (let n = item.call.lane + by; n >= 0 && n < lanes.length; n += by) {
    const lane = lanes[n].filter(passes), at = lastUpTo(lane, item.end, (one) => one.from);
    if (at >= 0) return go(lane[at]);
  }
}

/** What is at an LSN, or what it is about: a call for its outcome, a step for its beginning. */
function itemAt(lsn) {
  return callAt.get(lsn) ?? items.find((item) => item.lsn === lsn && item.type !== "life")
    ?? calls.find((item) => item.call.end === lsn || (item.call.history ?? []).some((one) => one[0] === lsn))
    ?? items[Math.max(0, lastUpTo(items, lsn, (item) => item.lsn))];
}

const KEYS = {
  "/": () => { $("query").focus(); $("query").select(); },
  n: () => step(1), p: () => step(-1), N: () => step(-1),
  ArrowRight: () => walk(1), ArrowLeft: () => walk(-1), ArrowUp: () => climb(-1), ArrowDown: () => climb(1),
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: showAll,
  t: () => setAxis(!state.byTime),
  Escape: () => {
    if ($("query").value) { $("query").value = ""; search(); }
    select(null);
  },
};
document.onkeydown = (event) => {
  const typing = event.target.matches("input, select");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing && event.target === $("query") && event.key === "Enter") step(event.shiftKey ? -1 : 1);
  else if (typing && event.key === "Escape") { KEYS.Escape(); event.target.blur(); }
  else if (typing || !Object.hasOwn(KEYS, event.key)) return;
  else KEYS[event.key]();
  event.preventDefault();
};

// -- the page

function head() {
  const { run } = M, away = run.records ? T[RECORDS - 1] : 0;
  $("state").textContent = run.state;
  $("state").classList.add(run.state.replaceAll(" ", "-"));
  $("task").textContent = [oneLine(run.task), run.why].filter(Boolean).join(" \u2014 ");
  const parts = [
    ["started", run.records ? `${iso(M.began).slice(0, 19)} UTC` : ""], ["wall time", duration(away)],
    ["at work", duration((run.seconds ?? 0) * 1e6)], ["steps", number(run.steps ?? 0)], ["attempts", number(run.attempts ?? 0)],
    ["failed", run.failed, run.failed > 0], ["tokens", run.tokens && number(run.tokens)],
    ["cost", run.cost && run.cost.toFixed(4)], ["recoveries", M.lives.length - 1 && run.recoveries],
    ["in doubt", doubtful.length, doubtful.length > 0], ["damage", damage.length, damage.length > 0],
    ["torn tail", run.torn && `${number(run.torn)} bytes`], ["records", number(run.records)],
    ["older, not shown", run.older && number(run.older)],
    ["child of", run.parent], ["forked from", run.forked],
  ];
  for (const [name, value, bad] of parts) {
    if (value) {
      $("facts").append(el("div", bad ? "bad" : "", el("dt", "", name), el("dd", "", String(value))));
    }
  }
}

const ALERTS_MAX = 2;

function alerts() {
  const box = $("alerts");
  for (const item of damage) box.append(button("alert", `Damage: ${item.found.text}`, () => go(item)));
  for (const item of doubtful.slice(0, ALERTS_MAX)) {
    const { call } = item, alert = button("alert", "", () => go(item));
    alert.append(el("b", "", `In doubt: ${call.tool.slice(0, 80)}`),
      [`LSN ${call.lsn}, step ${call.step ?? 0}`, oneLine(call.args).slice(0, 200)].filter(Boolean).join(" \u00b7 "),
      el("span", "", [call.key && `idempotency key ${call.key}`, call.then && `a recovery ${call.then}`]
        .filter(Boolean).join("; ")));
    box.append(alert);
  }
  const more = doubtful.length - ALERTS_MAX;
  if (more > 0) {
    box.append(button("alert", `and ${plural(more, "more call")} in doubt`, () => {
      $("doubt").checked = true;
      filter();
    }));
  }
  box.hidden = !box.children.length;
}

function begin() {
  for (const id of ["bar", "chart", "below"]) $(id).hidden = false;
  head();
  alerts();
  for (const name of toolNames) $("tool").append(new Option(name || "(no name)", name));
  TABS.forEach(([name, rows], n) => {
    const tab = button("", `${name} ${number(rows.length)}`, () => openTab(n));
    tab.setAttribute("role", "tab");
    $("tabs").append(tab);
  });
  openTab(messages.length ? 0 : 1);
  $("query").oninput = search;
  $("tool").onchange = $("errors").onchange = $("doubt").onchange = filter;
  $("prev").onclick = () => step(-1);
  $("next").onclick = () => step(1);
  $("in").onclick = KEYS["+"];
  $("out").onclick = KEYS["-"];
  $("all").onclick = showAll;
  $("by-time").onclick = () => setAxis(true);
  $("by-record").onclick = () => setAxis(false);
  new ResizeObserver(resize).observe($("chart"));
  matchMedia("(prefers-color-scheme: dark)").onchange = resize;
  onbeforeprint = () => { document.documentElement.dataset.theme = "light"; readColours(); drawNow(); };
  onafterprint = () => { delete document.documentElement.dataset.theme; resize(); };
  onhashchange = follow;
  resize();
  setAxis(state.byTime);
  follow();
}

function follow() {
  const lsn = Number(/^#lsn=(\d{1,15})$/.exec(location.hash)?.[1] ?? 0);
  if (lsn && state.selected?.lsn !== lsn) go(itemAt(lsn));
  else if (!state.selected) select(null);
}

begin();
