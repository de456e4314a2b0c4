// The trajectory viewer: filters a table of all trajectories, and shows one of them token by token.
// data/index.js calls rstar2.index with the table, as columns; data/chunk-N.js call rstar2.chunk with texts, and are
// read when one of theirs is shown or searched. Text goes into the page as text nodes only, never as markup.
"use strict";

const ROW = 46; // height of a row of the list, as in style.css
const CACHED_CHUNKS = 8;
const STRONGEST = 300; // the value, in hundredths of a nat, that "shade" shows at full strength
const byId = (id) => document.getElementById(id);
let table = null; // what rstar2.index was given
let columns = null;
let rows = 0;
let groups = new Map(); // group -> trajectories
let shown = []; // trajectories that pass the filters, in order
let chosen = -1;
let matching = null; // trajectories that hold the text looked for; null: none is looked for
let search = 0; // number of the latest search: an older one stops
const look = { mode: "high", measure: "surprisal" };

// -- data ----------------------------------------------------------------------------------------------------------

const chunks = new Map(); // number -> promise of {prompts, rows}, oldest use first
const arriving = new Map();

globalThis.rstar2 = {
  index(data) { table = data; columns = data.columns; rows = columns.stage.length; begin(); },
  chunk(number, data) { arriving.get(number)?.(data); arriving.delete(number); },
};

function chunk(number) {
  const known = chunks.get(number);
  chunks.delete(number);
  const wanted = known ?? new Promise((resolve, reject) => {
    arriving.set(number, resolve);
    const script = document.createElement("script");
    script.src = `data/chunk-${number}.js`;
    script.onload = () => script.remove();
    script.onerror = () => { script.remove(); chunks.delete(number); reject(new Error(`${script.src} is missing`)); };
    document.head.append(script);
  });
  chunks.set(number, wanted);
  if (chunks.size > CACHED_CHUNKS) chunks.delete(chunks.keys().next().value);
  return wanted;
}

const groupOf = (i) => JSON.stringify([columns.stage[i], columns.set[i], columns.step[i], columns.prompt[i]]);
const penalty = (i) => columns.p_err[i] + columns.p_format[i];
const lost = (i) => columns.verdict[i] === "internal" || columns.stop[i] === "infrastructure";
const right = (i) => columns.reward[i] > 0;
const result = (i) => lost(i) ? "lost" : right(i) ? "right" : "wrong";
const fate = (i) => columns.reason[i] || "no selection here";

// -- elements ------------------------------------------------------------------------------------------------------

function element(name, classes, ...inside) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  made.append(...inside.map((one) => one instanceof Node ? one : String(one)));
  return made;
}

function options(id, pairs) {
  byId(id).replaceChildren(...pairs.map(([value, label]) => { const one = element("option", "", label); one.value = value; return one; }));
}

// -- filters -------------------------------------------------------------------------------------------------------

const TESTS = {
  result: { right, wrong: (i) => !right(i) && !lost(i), "no answer": (i) => columns.verdict[i] === "no_answer", lost },
  errors: {
    "no failed call": (i) => columns.calls[i] > 0 && columns.errors[i] === 0,
    "a failed call": (i) => columns.errors[i] > 0,
    "only failed calls": (i) => columns.calls[i] > 0 && columns.errors[i] === columns.calls[i],
    "no call at all": (i) => columns.calls[i] === 0,
  },
};
const ORDERS = {
  "as sampled": null,
  "longest first": (i) => -columns.tokens[i],
  "shortest first": (i) => columns.tokens[i],
  "most failed calls first": (i) => -columns.errors[i],
  "highest penalty first": (i) => -penalty(i),
  "highest mean surprisal first": (i) => -(columns.surprisal[i] ?? 0),
};

function begin() {
  for (let i = 0; i < rows; i += 1) {
    const group = groupOf(i);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(i);
  }
  const distinct = (name) => [...new Set(columns[name])];
  const any = ["", "all"];
  const same = (values) => values.map((value) => [value, value]);
  options("stage", [any, ...same(distinct("stage"))]);
  options("set", [any, ...same(distinct("set"))]);
  options("stop", [any, ...same(distinct("stop").sort())]);
  options("result", [any, ...same(Object.keys(TESTS.result))]);
  options("errors", [any, ...same(Object.keys(TESTS.errors))]);
  const reasons = distinct("reason").filter(Boolean).sort();
  const fates = [...new Set(reasons.map((reason) => reason.split(":")[0]))];
  options("reason", [any, ...fates.map((name) => [name, `${name}: any`]), ...same(reasons)]);
  options("order", same(Object.keys(ORDERS)));
  byId("scored-label").hidden = !columns.entropy.some((value) => value !== null);
  byId("about").textContent = `${rows.toLocaleString("en")} of the job's ${table.trajectories.toLocaleString("en")} trajectories, in whole groups`;
  byId("filters").addEventListener("input", (event) => event.target.id === "text" ? searchSoon() : filter());
  byId("list").addEventListener("scroll", () => requestAnimationFrame(draw));
  addEventListener("resize", draw);
  addEventListener("keydown", step);
  addEventListener("hashchange", readHash);
  filter();
  readHash();
}

function filter() {
  const value = (id) => byId(id).value;
  const number = (id, otherwise) => value(id) === "" ? otherwise : Number(value(id));
  const [from, to] = [number("step-from", -Infinity), number("step-to", Infinity)];
  const [least, most] = [number("penalty-from", -Infinity), number("penalty-to", Infinity)];
  const tests = [(i) => columns.step[i] >= from && columns.step[i] <= to, (i) => penalty(i) >= least && penalty(i) <= most];
  for (const name of ["stage", "set", "stop"]) if (value(name)) { const wanted = value(name); tests.push((i) => columns[name][i] === wanted); }
  for (const name of ["result", "errors"]) if (value(name)) tests.push(TESTS[name][value(name)]);
  if (value("reason")) { const wanted = value("reason"); tests.push((i) => columns.reason[i] === wanted || columns.reason[i].startsWith(`${wanted}:`)); }
  if (byId("scored").checked) tests.push((i) => columns.entropy[i] !== null);
  if (matching) tests.push((i) => matching.has(i));
  shown = [];
  for (let i = 0; i < rows; i += 1) if (tests.every((test) => test(i))) shown.push(i);
  const key = ORDERS[value("order")];
  if (key) shown.sort((a, b) => key(a) - key(b) || a - b);
  byId("spacer").style.height = `${shown.length * ROW}px`;
  count();
  draw();
}

function count(note = "") {
  const good = shown.filter(right).length;
  const share = shown.length ? `, ${(100 * good / shown.length).toFixed(1)} % right` : "";
  byId("count").textContent = `${shown.length.toLocaleString("en")} ${shown.length === 1 ? "trajectory" : "trajectories"}${share}${note}`;
}

let typing = 0;
function searchSoon() { clearTimeout(typing); typing = setTimeout(searchText, 250); }

async function searchText() {
  const mine = search += 1;
  const wanted = byId("text").value.toLowerCase();
  if (!wanted) { matching = null; filter(); return; }
  matching = new Set();
  const members = Array.from({ length: table.chunks }, () => []);
  for (let i = 0; i < rows; i += 1) members[columns.chunk[i]].push(i);
  for (let number = 0; number < table.chunks; number += 1) {
    const data = await chunk(number);
    if (mine !== search) return;
    const prompts = data.prompts.map((prompt) => prompt.toLowerCase().includes(wanted));
    for (const i of members[number]) {
      const one = data.rows[columns.place[i]];
      const text = () => one.turns.map((turn) => turn.text ?? turn.pieces.join("")).join("").toLowerCase();
      if (prompts[one.prompt] || columns.prompt[i].toLowerCase().includes(wanted) || text().includes(wanted)) matching.add(i);
    }
    filter();
    if (number + 1 < table.chunks) count(`; searched ${number + 1} of ${table.chunks} files …`);
  }
}

// -- the list: only the rows in sight exist --------------------------------------------------------------------------

function draw() {
  const list = byId("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
  const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 5);
  const made = [byId("spacer")];
  for (let at = first; at < last; at += 1) made.push(listRow(shown[at], at));
  list.replaceChildren(...made);
}

function listRow(i, at) {
  const where = columns.set[i] === "evaluation" ? "evaluation" : `step ${columns.step[i]}`;
  const one = element("div", `row${i === chosen ? " chosen" : ""}`,
    element("div", "", element("b", result(i), result(i)), ` ${columns.stage[i]}, ${where}: ${columns.prompt[i]} #${columns.sample[i]}`),
    element("div", "second", `${columns.tokens[i]} tokens · calls ${columns.calls[i]}, failed ${columns.errors[i]} · penalty ${penalty(i).toFixed(2)} · ${fate(i)}`));
  one.style.top = `${at * ROW}px`;
  one.addEventListener("click", () => choose(i));
  return one;
}

function step(event) {
  if (/INPUT|SELECT|TEXTAREA/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  if (!by || !shown.length) return;
  event.preventDefault();
  const at = Math.min(shown.length - 1, Math.max(0, shown.indexOf(chosen) + by));
  const list = byId("list");
  if (at * ROW < list.scrollTop) list.scrollTop = at * ROW;
  if ((at + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (at + 1) * ROW - list.clientHeight;
  choose(shown[at]);
}

// -- the chosen trajectory ---------------------------------------------------------------------------------------------

function readHash() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.get("scored")) { byId("scored").checked = true; look.measure = "entropy"; filter(); }
  const i = wanted.has("t") ? Number(wanted.get("t")) : shown[0];
  if (i !== chosen && i >= 0 && i < rows) choose(i);
}

async function choose(i) {
  chosen = i;
  history.replaceState(null, "", `#t=${i}`);
  draw();
  try {
    const data = await chunk(columns.chunk[i]);
    if (chosen !== i) return;
    const one = data.rows[columns.place[i]];
    show(i, one, data.prompts[one.prompt]);
  } catch (error) {
    byId("shown").replaceChildren(element("p", "wrong", `${error.message}: the folder of this page is not whole.`));
  }
}

function show(i, one, prompt) {
  if (columns.entropy[i] === null) look.measure = "surprisal";
  const where = columns.set[i] === "training" ? `step ${columns.step[i]}` : columns.set[i];
  const transcript = element("div", "");
  const repaint = () => transcript.replaceChildren(...turns(one));
  byId("shown").replaceChildren(
    element("h2", "", `${columns.stage[i]}, ${where}: problem ${columns.prompt[i]}, rollout ${columns.sample[i]}`),
    facts(i, one), selection(i), colours(i, repaint), promptBox(prompt), transcript);
  byId("shown").scrollTop = 0;
  const group = document.querySelector(".group");
  group.scrollTop = group.querySelector(".chosen").offsetTop - group.offsetTop - group.clientHeight / 2;
  repaint();
}

function facts(i, one) {
  const fact = (name, value, classes) => element("div", "", element("span", "", `${name} `), element("b", classes, value));
  const told = [
    fact("result", columns.verdict[i].replace("_", " "), result(i)),
    fact("answer", one.answer ?? "none"), fact("expected", one.gold), fact("ended by", columns.stop[i].replace("_", " ")),
    fact("turns", columns.turns[i]), fact("tokens", columns.tokens[i]),
    fact("tool calls", `${columns.calls[i]}, ${columns.errors[i]} failed`),
    fact("p_err", columns.p_err[i].toFixed(2)), fact("p_format", columns.p_format[i].toFixed(2)),
    fact("mean surprisal", `${(columns.surprisal[i] ?? 0).toFixed(3)} nats`),
  ];
  if (columns.entropy[i] !== null) told.push(fact("mean entropy", `${columns.entropy[i].toFixed(3)} nats`));
  if (columns.slice[i]) told.push(fact("slice", columns.slice[i]));
  told.push(fact("took", `${one.seconds} s`));
  if (one.error) told.push(fact("lost to", one.error, "lost"));
  return element("div", "facts", ...told);
}

function selection(i) {
  const members = groups.get(groupOf(i));
  const why = table.why[columns.stage[i]][columns.reason[i]] ?? columns.reason[i];
  const good = members.filter(right);
  const bad = members.filter((m) => !right(m) && !lost(m));
  const kept = (some) => some.filter((m) => columns.kept[m]).length;
  const counts = columns.reason[i]
    ? `Its group: ${members.length} rollouts of this problem; ${kept(good)} of ${good.length} right and ${kept(bad)} of ${bad.length} wrong ones are in the update.`
    : `Its group: ${members.length} rollouts of this problem, ${good.length} right.`;
  const weighted = table.modes[columns.stage[i]] === "Paper"; // else no draw has weights
  const head = ["rollout", "result", "calls", "failed", "p_err", "p_format", "p_total", "weight", "tokens", "fate"];
  const body = members.map((m) => {
    const weight = weighted && right(m) ? (1 / (penalty(m) + table.delta)).toFixed(2) : "–";
    const cells = [columns.sample[m], element("span", result(m), result(m)), columns.calls[m], columns.errors[m], columns.p_err[m].toFixed(2),
      columns.p_format[m].toFixed(2), penalty(m).toFixed(2), weight, columns.tokens[m], fate(m)];
    const row = element("tr", m === i ? "chosen" : "", ...cells.map((cell, at) => element("td", at === 9 || at === 1 ? "text" : "", cell)));
    row.addEventListener("click", () => choose(m));
    return row;
  });
  const box = element("div", "box",
    element("h3", "", "What Resample-on-Correct made of it"), element("p", "", element("b", "", fate(i)), `. ${why}`), element("p", "soft", counts),
    element("div", "group", element("table", "", element("thead", "", element("tr", "", ...head.map((name, at) => element("th", at === 9 || at === 1 ? "text" : "", name)))), element("tbody", "", ...body))));
  return box;
}

function promptBox(prompt) {
  return element("div", "turn", element("h3", "", "prompt"), element("div", "tokens", prompt));
}

const MODES = { high: "top 20 %", shade: "shade by value", kind: "kinds of token", none: "no colours" };

function colours(i, repaint) {
  const mode = element("select", "");
  for (const [value, label] of Object.entries(MODES)) { const one = element("option", "", label); one.value = value; mode.append(one); }
  mode.value = look.mode;
  mode.addEventListener("input", () => { look.mode = mode.value; repaint(); });
  const measure = element("select", "");
  for (const value of columns.entropy[i] === null ? ["surprisal"] : ["surprisal", "entropy"]) measure.append(element("option", "", value));
  measure.value = look.measure;
  measure.addEventListener("input", () => { look.measure = measure.value; repaint(); });
  const keys = [["reasoning", "reasoning"], ["reflection", "reflection on a tool response"], ["code", "code"], ["answer", "answer"]];
  const fork = element("span", "tokens", element("span", "fork", "forking word"));
  return element("div", "colours", element("label", "", "colour ", mode), element("label", "", "by ", measure),
    ...keys.map(([name, label]) => element("span", `key ${name}`, label)), fork, element("span", "soft", "hover a token for its values"));
}

function turns(one) {
  const high = new Set(one.high[look.measure]);
  let token = 0;
  let number = 0;
  return one.turns.map((turn) => {
    if (turn.kind === "tool") {
      return element("div", "turn tool", element("h3", "", `tool response, after ${turn.seconds} s`), element("div", "tokens", turn.text));
    }
    const calls = one.calls.filter((call) => call.turn === number);
    number += 1;
    const text = element("div", "tokens");
    const regions = turn.regions.flatMap(([name, count]) => Array(count).fill(name));
    const forks = new Set(turn.forking);
    turn.pieces.forEach((piece, at) => {
      const value = turn[look.measure][at] ?? 0;
      const told = { piece, region: regions[at], fork: forks.has(at), high: high.has(token), surprisal: turn.surprisal[at], entropy: turn.entropy[at] };
      text.append(tokenSpan(told, value));
      token += 1;
    });
    const head = `model, turn ${number}, weights ${turn.weights || "unknown"}, ${turn.seconds} s`;
    return element("div", "turn", element("h3", "", head), text, ...calls.map(callBox));
  });
}

function tokenSpan(told, value) {
  const classes = [];
  if (look.mode === "kind" || look.mode === "shade" || (look.mode === "high" && told.high)) classes.push(told.region);
  if (look.mode !== "none" && told.fork) classes.push("fork");
  const span = element("span", classes.join(" "), told.piece);
  if (look.mode === "shade") span.style.setProperty("--strength", String(Math.min(1, value / STRONGEST)));
  if (look.mode === "kind") span.style.setProperty("--strength", "0.16");
  span.addEventListener("mouseenter", (event) => tip(event, told));
  span.addEventListener("mouseleave", () => { byId("tip").hidden = true; });
  return span;
}

function callBox(call) {
  const inside = [element("pre", "", call.code || "(no code could be read from the call)")];
  if (call.stdin) inside.push(element("div", "soft", "standard input"), element("pre", "", call.stdin));
  const status = element("b", call.status === "ok" ? "right" : "wrong", call.status.replace("_", " "));
  const name = call.name || "tool call";
  return element("details", "", element("summary", "", `${name}: `, status, `, waited ${call.queue} s, ran ${call.run} s; its code`), ...inside);
}

function tip(event, told) {
  const nats = (value) => `${(value / table.nats).toFixed(2)} nats`;
  const lines = [JSON.stringify(told.piece), told.region + (told.fork ? ", forking word" : "") + (told.high ? `, in the top 20 % by ${look.measure}` : "")];
  if (told.surprisal !== undefined) lines.push(`surprisal ${nats(told.surprisal)} (p = ${Math.exp(-told.surprisal / table.nats).toPrecision(2)})`);
  if (told.entropy !== undefined) lines.push(`entropy ${nats(told.entropy)}`);
  const box = byId("tip");
  box.textContent = lines.join("\n");
  box.hidden = false;
  box.style.left = `${Math.min(event.clientX + 12, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${event.clientY + 18 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 18}px`;
}
