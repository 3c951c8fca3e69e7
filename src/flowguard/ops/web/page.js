const HISTORY = 3_600; // Points of an open page.
let range_s = 300;
const SHOWN_REASONS = 6;
const SLOW_RETRY_MS = 3_000;
const SILENT_MS = 5_000;

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const number = (value) => (value >= 100 ? whole : short).format(value);
const compact = (value) => value < 100_000 ? number(value)
  : new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (bytes >= 1024 && step < units.length - 1) { bytes /= 1024; step += 1; }
  return `${bytes >= 100 || !step ? whole.format(bytes) : short.format(bytes)} ${units[step]}`;
}

function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return `${number(seconds * 1e6)} µs`;
  return seconds < 1 ? `${number(seconds * 1e3)} ms` : `${number(seconds)} s`;
}

function span(seconds) {
  if (seconds < 120) return `${whole.format(seconds)} s`;
  if (seconds < 7_200) return `${whole.format(seconds / 60)} min`;
  return seconds < 172_800 ? `${whole.format(seconds / 3_600)} h` : `${whole.format(seconds / 86_400)} days`;
}

const clock = (seconds) => new Date(seconds * 1e3).toLocaleTimeString("en-GB");
const share = (used, limit) => (limit ? Math.min(1, used / limit) : 0);
const level = (part) => (part >= 0.95 ? "bad" : part >= 0.75 ? "busy" : "");

// --- parts of the document: changed in place, so that who reads or points at them keeps them ----

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

function fit(parent, count, build) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(build());
  return [...parent.children];
}

function meters(id, rows) {
  const build = () => {
    const item = make("li");
    const track = make("span", "track");
    track.append(make("span", "fill"));
    track.setAttribute("aria-hidden", "true");
    item.append(make("span", "name"), make("span", "value"), track);
    return item;
  };
  fit($(id), rows.length, build).forEach((item, index) => {
    const row = rows[index];
    item.className = row.className || "";
    write(item.children[0], row.name);
    write(item.children[1], row.value);
    item.querySelector(".fill").style.width = `${(100 * Math.min(1, Math.max(0, row.part))).toFixed(1)}%`;
  });
}

function use(name, one, format = number) {
  const part = share(one.used, one.limit);
  const value = one.limit === null ? format(one.used) : `${format(one.used)} of ${format(one.limit)}`;
  return { name, value, part, className: level(part) };
}

function facts(id, rows) {
  const build = () => { const row = make("div"); row.append(make("dt"), make("dd")); return row; };
  fit($(id), rows.length, build).forEach((row, index) => {
    const [name, value, className = ""] = rows[index];
    write(row.children[0], name);
    write(row.children[1], value);
    row.children[1].className = className;
  });
}

function table(id, rows, none, onName) {
  const body = $(id);
  if (body.contains(document.activeElement)) return; // Rows stay where they are under the keyboard.
  if (!rows.length) {
    if (body.firstElementChild?.dataset.none) return;
    const cell = make("td", "none", none);
    cell.colSpan = body.previousElementSibling.rows[0].cells.length;
    const row = make("tr");
    row.dataset.none = "1";
    row.append(cell);
    body.replaceChildren(row);
    return;
  }
  if (body.firstElementChild?.dataset.none) body.replaceChildren();
  const build = () => {
    const row = make("tr");
    const head = make("th");
    head.scope = "row";
    if (onName) {
      const button = make("button", "name-button");
      button.type = "button";
      button.addEventListener("click", () => onName(button.textContent));
      head.append(button);
    }
    row.append(head, ...rows[0].slice(1).map(() => make("td")));
    return row;
  };
  fit(body, rows.length, build).forEach((row, index) => {
    const [name, ...values] = rows[index];
    write(onName ? row.firstElementChild.firstElementChild : row.firstElementChild, name);
    values.forEach((value, column) => write(row.children[column + 1], value));
  });
}

const SVG = "http://www.w3.org/2000/svg";

function spark(id, name, field, { format = number, log = false, least = 1, rule = null } = {}) {
  const end = history.length ? history.at(-1).at_s : 0;
  const seen = history.filter((point) => point.at_s >= end - range_s);
  const points = seen.map((point) => point[field]);
  const known = points.filter((value) => value !== null);
  const most = Math.max(least, ...known);
  const scale = (value) => (log ? Math.log1p(value) / Math.log1p(most) : value / most);
  const shown_s = seen.length ? Math.min(range_s, Math.max(60, end - seen[0].at_s)) : range_s;
  let line = "";
  let first = null;
  let last = null;
  points.forEach((value, index) => {
    if (value === null) return;
    const x = 300 - Math.min(shown_s, end - seen[index].at_s) * (300 / shown_s);
    const y = 39 - 38 * Math.max(0, scale(value));
    line += `${line ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    first ??= x;
    last = x;
  });
  let svg = $(id).firstElementChild;
  if (!svg) {
    svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 300 40");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    for (const [tag, className] of [["path", "under"], ["line", "rule"], ["path", "over"]]) {
      const part = document.createElementNS(SVG, tag);
      part.setAttribute("class", className);
      svg.append(part);
    }
    const note = make("p", "scale dim");
    $(id).append(svg, note);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      svg.pointer = (event.clientX - box.left) / box.width;
      write(note, svg.told());
    });
    svg.addEventListener("pointerleave", () => { svg.pointer = null; write(note, svg.told()); });
  }
  const [under, ruled, over] = svg.children;
  under.setAttribute("d", line && `${line}L${last.toFixed(1)} 40L${first.toFixed(1)} 40Z`);
  over.setAttribute("d", line);
  if (rule !== null && rule <= most) {
    const y = 39 - 38 * scale(rule);
    for (const [key, value] of Object.entries({ x1: 0, x2: 300, y1: y, y2: y })) ruled.setAttribute(key, value);
  }
  const said = known.length ? `now ${format(known.at(-1))}, at most ${format(Math.max(...known))}` : "nothing yet";
  svg.told = () => {
    if (!known.length) return "";
    if (svg.pointer == null) return `0 to ${format(most)}, peak ${format(Math.max(...known))}`;
    const at_s = end - shown_s * (1 - svg.pointer);
    const near = seen.filter((point) => point[field] !== null)
      .reduce((best, point) => (Math.abs(point.at_s - at_s) < Math.abs(best.at_s - at_s) ? point : best));
    return `${clock(near.at_s)}: ${format(near[field])}`;
  };
  write($(id).lastElementChild, svg.told());
  svg.setAttribute("aria-label", `${name}, the last ${span(shown_s)}: ${said}`);
}

// --- what the node says -------------------------------------------------------------------------

let history = [];
let before = null;
let announced = "";

const SIGNALS = { queue: "packets wait", loop: "event loop late", store: "store commits", replication: "replication behind", memory: "memory held" };
const RUNGS = { close: "New sockets beyond the budget for refusing are closed at once." };

function showCondition(sample) {
  const { condition, sentence, status } = sample;
  document.body.dataset.condition = condition;
  document.title = `${condition} · flowguard`;
  const parts = $("sentence");
  if (parts.children.length < 2) parts.replaceChildren(make("span", "condition"), make("span"));
  write(parts.children[0], condition[0].toUpperCase() + condition.slice(1));
  write(parts.children[1], sentence.slice(condition.length).replace(/(\d) (?=\w|%)/g, "$1\u00a0"));
  write($("why"), status.why ? `The law: ${status.why}` : "The law has decided nothing yet.");
  if (announced !== condition) { // A screen reader hears of changes, not of every second.
    announced = condition;
    write($("said"), sentence);
  }
  write($("version"), `${status.version} · policy ${status.policy} · up ${span(status.now_s - status.started_s)}`);
  write($("process"), `Process ${status.pid}, started ${new Date(status.started_s * 1e3).toLocaleString("en-GB")}.`);
}

function showPressure({ pressure, upstreams }) {
  write($("pressure"), pressure.value.toFixed(2));
  const limits = pressure.cause !== null && pressure.value >= 0.8;
  write($("cause"), limits ? `of 1, by the ${pressure.cause}` : "of 1");
  spark("s-pressure", "Pressure", "pressure", { least: 1.25, rule: 1 });
  meters("signals", Object.entries(pressure.signals).map(([signal, value]) => {
    const format = signal === "memory" ? (part) => `${Math.round(part * 100)} %` : time;
    const isCause = limits && signal === pressure.cause;
    return {
      name: upstreams && signal === "store" ? "broker behind acknowledges" : SIGNALS[signal] ?? signal,
      value: `${format(pressure.observed[signal])} of ${format(pressure.objectives[signal])}`,
      part: value / 2,
      className: `${isCause ? "cause " : ""}${value > 1.2 ? "bad" : value >= 1 ? "busy" : ""}`,
    };
  }));
}

function showAdmission({ window: one, clients, unfinished, gate, listener }) {
  write($("window"), one.granted < 1 ? "turns" : whole.format(one.limit));
  write($("window-max"), one.closed ? "closed: nothing is admitted" : `of ${whole.format(one.limit_max)} packets each`);
  spark("s-window", "Window", "window", { log: true, least: one.limit_max });
  facts("admission", [
    ["clients paused", number(clients.paused)],
    ["packets in process", number(unfinished.packets.used)],
    ["their size", size(unfinished.bytes.used)],
    ["share of the loop's work", one.work_share === null ? "–" : `${number(100 * one.work_share)} %`],
  ]);
  write($("clients"), whole.format(clients.connected));
  spark("s-clients", "Clients", "clients", {});
  facts("sessions", [
    ...(clients.sessions === undefined ? [] : [["sessions", number(clients.sessions)], ["subscriptions", number(clients.subscriptions)]]),
    ["sockets", listener.connections.limit ? `${number(listener.connections.used)} of ${compact(listener.connections.limit)}` : number(listener.connections.used)],
  ]);
  write($("waiting"), compact(gate.buffered.used));
  spark("s-waiting", "CONNECTs that wait", "connects_waiting", {});
  const rows = [use("in process", { used: gate.in_process, limit: gate.limit }), use("connect queue", gate.buffered, compact)];
  rows[0].className = "";
  if (listener.handshakes.limit) {
    rows.push({ ...use("handshakes", { used: listener.handshakes.in_process, limit: listener.handshakes.limit }), className: "" });
    if (listener.handshakes.waiting) rows.push({ name: "handshakes wait", value: number(listener.handshakes.waiting), part: 0 });
  }
  meters("gate", rows);
  write($("rung"), RUNGS[gate.rung] ?? "");
}

function perSecond(status, key, now, then) {
  if (!before) return 0;
  const passed = status.now_s - before.now_s;
  return passed > 0 ? (now - then) / passed : 0;
}

function reasons(status, counts, old) {
  const rows = Object.entries(counts).filter(([, count]) => count).sort((a, b) => b[1] - a[1]);
  const shown = rows.slice(0, SHOWN_REASONS).map(([reason, count]) =>
    [reason, number(perSecond(status, reason, count, old?.[reason] ?? 0)), compact(count)]);
  const rest = rows.slice(SHOWN_REASONS).reduce((sum, [, count]) => sum + count, 0);
  return rest ? [...shown, ["other reasons", "", compact(rest)]] : shown;
}

function showTraffic({ status, point, latencies }) {
  const traffic = status.traffic;
  write($("received"), compact(point.received_per_s));
  write($("sent"), compact(point.sent_per_s));
  spark("s-received", "Messages in per second", "received_per_s", {});
  spark("s-sent", "Messages out per second", "sent_per_s", {});
  facts("traffic", [
    ["in, all", compact(traffic.publish_received)], ["out, all", compact(traffic.publish_sent)],
    ["bytes received", size(traffic.received_bytes)], ["bytes sent", size(traffic.sent_bytes)],
  ]);
  spark("s-latency", "PUBLISH to its acknowledgement, 99 %", "acknowledged_p99_s", { format: time, log: true, least: 0.001 });
  const row = (name, one) => [name, time(one.p50_s), time(one.p99_s), compact(one.count)];
  table("latencies", [
    row("PUBLISH to its acknowledgement", latencies.acknowledgement),
    ...(latencies.store ? [row("work to its commit", latencies.store)] : []),
    row("CONNECT to CONNACK", latencies.connect),
  ], "");
  spark("s-refused", "CONNECTs rejected per second", "refused_per_s", {});
  spark("s-dropped", "Messages dropped per second", "dropped_per_s", {});
  table("refused", reasons(status, status.gate.refused, before?.gate.refused), "No CONNECT was rejected.");
  table("dropped", reasons(status, status.dropped, before?.dropped), "No message was dropped.");
}

function showClients({ talkers, queues }) {
  $("talkers").closest("section").hidden = $("queues").closest("section").hidden = !talkers;
  if (!talkers) return;
  const rate = (bytes) => `${size(bytes)}/s`;
  const called = talkers.map((one) => [one.client_id, rate(one.received_bytes_per_s), rate(one.sent_bytes_per_s)]);
  table("talkers", called, "No client sends or receives now.", explain);
  const waits = queues.map((one) => [one.client_id, number(one.messages), size(one.bytes)]);
  table("queues", waits, "No message waits.", explain);
}

// A proxy has brokers behind it instead of a store.
function showUpstreams({ upstreams }) {
  $("upstreams").closest("section").hidden = !upstreams;
  if (!upstreams) return;
  table("upstreams", Object.entries(upstreams.each).map(([name, one]) =>
    [name, one.up ? "answers" : one.why, number(one.clients), number(one.packets), time(one.oldest_packet_s)]), "");
}

function showMemory({ memory, budgets = {} }) {
  const rows = Object.entries(budgets).filter(([, one]) => one.used && one.limit)
    .sort((a, b) => b[1].used / b[1].limit - a[1].used / a[1].limit).slice(0, 6)
    .map(([name, one]) => use(name.replaceAll("_", " "), one, size));
  if (memory) rows.unshift(use("held by the node", { used: memory.held_bytes, limit: memory.limit_bytes }, size));
  if (memory) rows.push({ name: "resident, with what the allocator keeps", value: size(memory.resident_bytes), part: share(memory.resident_bytes, memory.limit_bytes) });
  meters("memory", rows);
}

function showStore({ store, journal, log }) {
  $("store").closest("section").hidden = !store;
  if (!store) return;
  meters("journal", [use("operations for the next commit", journal.operations, compact), use("their size", journal.bytes, size)]);
  facts("store", [
    ["state", store.read_only ? "read-only: the disk is full" : store.away_s ? `unavailable for ${span(store.away_s)}` : store.state, store.read_only || store.away_s || store.state !== "flowing" ? "bad" : ""],
    ...(store.why ? [["last error", store.why, "bad"]] : []),
    ["commit under way", time(journal.committing_s)],
    ["oldest work waits", time(journal.waiting_s)],
    ["size", size(store.used_bytes)],
    ["free on its disk", store.free_bytes === null ? "–" : size(store.free_bytes)],
    ["pages unreadable", number(store.pages_unreadable), store.pages_unreadable ? "bad" : ""],
    ["clients catching up", number(log.catching_up)],
  ]);
}

// Steps of growth in a row are one line, so that what led to a cut is not pushed out of sight.
function merged(decisions) {
  const rows = [];
  for (const one of decisions) {
    const last = rows.at(-1);
    const grows = one.why.startsWith("grows");
    if (grows && last?.grows) Object.assign(last, one);
    else rows.push({ ...one, grows, from: one.window });
  }
  return rows.reverse();
}

function showDecisions({ decisions }) {
  const list = $("decisions");
  if (!decisions.length) {
    if (!list.children.length) list.append(make("li", "none", "The window has not changed since the start."));
    return;
  }
  if (list.firstElementChild?.className === "none") list.replaceChildren();
  const build = () => { const item = make("li"); item.append(make("span", "dim"), make("span"), make("span")); return item; };
  const rows = merged(decisions);
  fit(list, rows.length, build).forEach((item, index) => {
    const one = rows[index];
    write(item.children[0], clock(one.at_s));
    const from = one.from !== one.window ? `${number(one.from)} to ` : "";
    write(item.children[1], one.window < 1 ? "turns" : `window ${from}${number(one.window)}`);
    write(item.children[2], one.why);
  });
}

// --- limits --------------------------------------------------------------------------------------

$("limits-open").addEventListener("toggle", async () => {
  if (!$("limits-open").open) return;
  try {
    const limits = Object.entries(await (await fetch("limits")).json());
    const rows = limits.map(([key, one]) => [key, String(one.value), one.origin]);
    table("limits", rows.sort((a, b) => (a[2] === "default") - (b[2] === "default")), "");
  } catch { $("limits-open").open = false; } // The feed says that there is no answer.
});

// --- the feed -----------------------------------------------------------------------------------

let paused = false;
let source = null;
let heard = 0;
let latest = null;

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  write($("feed"), paused ? "paused" : "live");
});

$("hour").addEventListener("click", () => {
  range_s = range_s === 300 ? HISTORY : 300;
  $("hour").setAttribute("aria-pressed", String(range_s === HISTORY));
  if (latest) show(latest);
});

function named(fields, values) {
  return Object.fromEntries(fields.map((field, index) => [field, values[index]]));
}

let fields = [];

function listen() {
  source = new EventSource("events");
  source.addEventListener("history", (event) => {
    const told = JSON.parse(event.data);
    fields = told.fields;
    history = told.points.map((values) => named(fields, values));
    before = null;
  });
  source.addEventListener("sample", (event) => {
    const sample = JSON.parse(event.data);
    sample.point = named(fields, sample.point);
    if (history.length && history.at(-1).at_s >= sample.point.at_s) history = [];
    history = [...history, sample.point].slice(-HISTORY);
    heard = Date.now();
    latest = sample;
    document.body.classList.remove("stale");
    if ((paused && document.body.dataset.condition !== "lost") || document.hidden) return;
    show(sample);
    write($("feed"), "live");
  });
  source.addEventListener("error", () => {
    lost();
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, SLOW_RETRY_MS);
  });
}

// What the page showed last may be wrong now, so the sentence goes first.
function lost() {
  const what = heard ? `No answer since ${clock(heard / 1e3)}` : "No answer";
  write($("feed"), what.toLowerCase());
  document.body.classList.add("stale");
  document.body.dataset.condition = "lost";
  document.title = "no answer · flowguard";
  $("sentence").replaceChildren(make("span", "condition", what));
  if (announced !== "lost") write($("said"), what);
  announced = "lost";
}

// A broker that hangs, or a network that is cut, closes no connection.
setInterval(() => { if (heard && Date.now() - heard > SILENT_MS && !document.hidden) lost(); }, 1_000);

function show(sample) {
  const { status } = sample;
  showCondition(sample);
  showPressure(status);
  showAdmission(status);
  showTraffic(sample);
  showClients(sample);
  showStore(status);
  showUpstreams(status);
  showMemory(status);
  showDecisions(status);
  if (asked) void ask();
  before = status;
  document.documentElement.dataset.drawn = "1";
}

function explainLinked() {
  const linked = new URLSearchParams(location.hash.slice(1)).get("client");
  if (linked) {
    $("client").value = linked;
    explain(linked);
  }
}
addEventListener("hashchange", explainLinked);
explainLinked();
listen();
