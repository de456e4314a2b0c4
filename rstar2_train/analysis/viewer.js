// The trajectory viewer: filters the table of all trajectories, and shows one of them token by token.
// data/index.js calls rstar2.index with the table as columns. data/chunk-N.js calls rstar2.chunk with texts, and is loaded
// when a trajectory of it is shown or searched. Texts are inserted as text nodes only, never as markup.
"use strict";

const ROW_HEIGHT = 46; // pixels, as in style.css
const CACHED_CHUNKS = 8;
const FULL_SHADE_NATS = 3; // value with the strongest shade
const byId = (id) => document.getElementById(id);
let table = null; // argument of rstar2.index
let columns = null;
let rowCount = 0;
let groups = new Map(); // group key -> rows
let visible = []; // rows that pass the filters, in list order
let selected = -1;
let textMatches = null; // rows that contain the search text; null: no search
let searchNumber = 0; // number of the latest search; an older search stops
const display = { mode: "high", measure: "surprisal" };

// -- data ----------------------------------------------------------------------------------------------------------

const chunks = new Map(); // number -> promise of {prompts, rows}, least recently used first
const pendingChunks = new Map(); // number -> resolve function of its promise

globalThis.rstar2 = {
  index(data) { table = data; columns = data.columns; rowCount = columns.stage.length; start(); },
  chunk(number, data) { pendingChunks.get(number)?.(data); pendingChunks.delete(number); },
};

function loadChunk(number) {
  const cached = chunks.get(number);
  chunks.delete(number);
  const promise = cached ?? new Promise((resolve, reject) => {
    pendingChunks.set(number, resolve);
    const script = document.createElement("script");
    script.src = `data/chunk-${number}.js`;
    script.onload = () => script.remove();
    script.onerror = () => { script.remove(); chunks.delete(number); reject(new Error(`cannot load data/chunk-${number}.js`)); };
    document.head.append(script);
  });
  chunks.set(number, promise);
  if (chunks.size > CACHED_CHUNKS) chunks.delete(chunks.keys().next().value);
  return promise;
}

const groupKey = (i) => JSON.stringify([columns.stage[i], columns.set[i], columns.step[i], columns.prompt[i]]);
const penalty = (i) => columns.p_err[i] + columns.p_format[i];
const isLost = (i) => columns.verdict[i] === "internal" || columns.stop[i] === "infrastructure";
const isCorrect = (i) => columns.reward[i] > 0;
const result = (i) => isLost(i) ? "lost" : isCorrect(i) ? "correct" : "wrong";
const selection = (i) => columns.reason[i] || "no selection";
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// -- elements ------------------------------------------------------------------------------------------------------

function element(name, classes, ...children) {
  const created = document.createElement(name);
  if (classes) created.className = classes;
  created.append(...children.map((child) => child instanceof Node ? child : String(child)));
  return created;
}

function option(value, label) {
  const created = element("option", "", label);
  created.value = value;
  return created;
}

function setOptions(id, pairs) {
  byId(id).replaceChildren(...pairs.map(([value, label]) => option(value, label)));
}

// -- filters -------------------------------------------------------------------------------------------------------

const TESTS = {
  result: { correct: isCorrect, wrong: (i) => !isCorrect(i) && !isLost(i), "no answer": (i) => columns.verdict[i] === "no_answer", lost: isLost },
  errors: {
    "no failed call": (i) => columns.calls[i] > 0 && columns.errors[i] === 0,
    "at least one failed call": (i) => columns.errors[i] > 0,
    "only failed calls": (i) => columns.calls[i] > 0 && columns.errors[i] === columns.calls[i],
    "no call": (i) => columns.calls[i] === 0,
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

function start() {
  for (let i = 0; i < rowCount; i += 1) {
    const key = groupKey(i);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(i);
  }
  const distinct = (name) => [...new Set(columns[name])];
  const all = ["", "all"];
  const unlabelled = (values) => values.map((value) => [value, value]);
  setOptions("stage", [all, ...unlabelled(distinct("stage"))]);
  setOptions("set", [all, ...unlabelled(distinct("set"))]);
  setOptions("stop", [all, ...unlabelled(distinct("stop").sort())]);
  setOptions("result", [all, ...unlabelled(Object.keys(TESTS.result))]);
  setOptions("errors", [all, ...unlabelled(Object.keys(TESTS.errors))]);
  const reasons = distinct("reason").filter(Boolean).sort();
  const prefixes = [...new Set(reasons.map((reason) => reason.split(":")[0]))];
  setOptions("reason", [all, ...prefixes.map((prefix) => [prefix, `${prefix}: any`]), ...unlabelled(reasons)]);
  setOptions("order", unlabelled(Object.keys(ORDERS)));
  byId("scored-label").hidden = !columns.entropy.some((value) => value !== null);
  byId("about").textContent = `${rowCount.toLocaleString("en")} of ${table.trajectories.toLocaleString("en")} trajectories, in complete groups`;
  byId("filters").addEventListener("input", (event) => event.target.id === "text" ? scheduleSearch() : filter());
  byId("list").addEventListener("scroll", () => requestAnimationFrame(drawList));
  addEventListener("resize", drawList);
  addEventListener("keydown", selectByKey);
  addEventListener("hashchange", readHash);
  filter();
  readHash();
}

function filter() {
  const value = (id) => byId(id).value;
  const number = (id, fallback) => value(id) === "" ? fallback : Number(value(id));
  const [firstStep, lastStep] = [number("step-from", -Infinity), number("step-to", Infinity)];
  const [minPenalty, maxPenalty] = [number("penalty-from", -Infinity), number("penalty-to", Infinity)];
  const tests = [
    (i) => columns.step[i] >= firstStep && columns.step[i] <= lastStep,
    (i) => penalty(i) >= minPenalty && penalty(i) <= maxPenalty,
  ];
  for (const name of ["stage", "set", "stop"]) if (value(name)) { const expected = value(name); tests.push((i) => columns[name][i] === expected); }
  for (const name of ["result", "errors"]) if (value(name)) tests.push(TESTS[name][value(name)]);
  if (value("reason")) { const reason = value("reason"); tests.push((i) => columns.reason[i] === reason || columns.reason[i].startsWith(`${reason}:`)); }
  if (byId("scored").checked) tests.push((i) => columns.entropy[i] !== null);
  if (textMatches) tests.push((i) => textMatches.has(i));
  visible = [];
  for (let i = 0; i < rowCount; i += 1) if (tests.every((test) => test(i))) visible.push(i);
  const key = ORDERS[value("order")];
  if (key) visible.sort((a, b) => key(a) - key(b) || a - b);
  byId("spacer").style.height = `${visible.length * ROW_HEIGHT}px`;
  showCount();
  drawList();
}

function showCount(note = "") {
  const correct = visible.filter(isCorrect).length;
  const share = visible.length ? `, ${(100 * correct / visible.length).toFixed(1)} % correct` : "";
  byId("count").textContent = `${visible.length.toLocaleString("en")} ${visible.length === 1 ? "trajectory" : "trajectories"}${share}${note}`;
}

let searchTimer = 0;
function scheduleSearch() { clearTimeout(searchTimer); searchTimer = setTimeout(searchText, 250); }

async function searchText() {
  const current = searchNumber += 1;
  const text = byId("text").value.toLowerCase();
  if (!text) { textMatches = null; filter(); return; }
  textMatches = new Set();
  const members = Array.from({ length: table.chunks }, () => []);
  for (let i = 0; i < rowCount; i += 1) members[columns.chunk[i]].push(i);
  for (let number = 0; number < table.chunks; number += 1) {
    const data = await loadChunk(number);
    if (current !== searchNumber) return;
    const prompts = data.prompts.map((prompt) => prompt.toLowerCase().includes(text));
    for (const i of members[number]) {
      const trajectory = data.rows[columns.place[i]];
      const response = () => trajectory.turns.map((turn) => turn.text ?? turn.pieces.join("")).join("").toLowerCase();
      if (prompts[trajectory.prompt] || columns.prompt[i].toLowerCase().includes(text) || response().includes(text)) textMatches.add(i);
    }
    filter();
    if (number + 1 < table.chunks) showCount(`; searched ${number + 1} of ${table.chunks} files …`);
  }
}

// -- the list: only its visible rows are elements ----------------------------------------------------------------------

function drawList() {
  const list = byId("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 5);
  const last = Math.min(visible.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW_HEIGHT) + 5);
  const rows = [byId("spacer")];
  for (let position = first; position < last; position += 1) rows.push(listRow(visible[position], position));
  list.replaceChildren(...rows);
}

function listRow(i, position) {
  const step = columns.set[i] === "evaluation" ? "evaluation" : `step ${columns.step[i]}`;
  const row = element("div", `row${i === selected ? " selected" : ""}`,
    element("div", "", element("b", result(i), result(i)), ` ${columns.stage[i]}, ${step}: ${columns.prompt[i]} #${columns.sample[i]}`),
    element("div", "second", `${columns.tokens[i]} tokens · ${counted(columns.calls[i], "call")}, ${columns.errors[i]} failed · p_total ${penalty(i).toFixed(2)} · ${selection(i)}`));
  row.style.top = `${position * ROW_HEIGHT}px`;
  row.addEventListener("click", () => { select(i); byId("trajectory").scrollIntoView({ block: "nearest" }); });
  return row;
}

function selectByKey(event) {
  if (/INPUT|SELECT|TEXTAREA/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const offset = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  if (!offset || !visible.length) return;
  event.preventDefault();
  const position = Math.min(visible.length - 1, Math.max(0, visible.indexOf(selected) + offset));
  const list = byId("list");
  if (position * ROW_HEIGHT < list.scrollTop) list.scrollTop = position * ROW_HEIGHT;
  if ((position + 1) * ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = (position + 1) * ROW_HEIGHT - list.clientHeight;
  select(visible[position]);
}

// -- the selected trajectory -------------------------------------------------------------------------------------------

function readHash() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  if (parameters.get("scored")) { byId("scored").checked = true; display.measure = "entropy"; filter(); }
  const i = parameters.has("t") ? Number(parameters.get("t")) : visible[0];
  if (i !== selected && i >= 0 && i < rowCount) select(i);
}

async function select(i) {
  selected = i;
  history.replaceState(null, "", `#t=${i}`);
  drawList();
  try {
    const data = await loadChunk(columns.chunk[i]);
    if (selected !== i) return;
    const trajectory = data.rows[columns.place[i]];
    showTrajectory(i, trajectory, data.prompts[trajectory.prompt]);
  } catch (error) {
    byId("trajectory").replaceChildren(element("p", "wrong", `${error.message}. The folder of this page is incomplete; copy it again or rerun rstar2 analyse.`));
  }
}

function showTrajectory(i, trajectory, prompt) {
  if (columns.entropy[i] === null) display.measure = "surprisal";
  const step = columns.set[i] === "training" ? `step ${columns.step[i]}` : columns.set[i];
  const transcript = element("div", "");
  const repaint = () => transcript.replaceChildren(...turnElements(trajectory));
  byId("trajectory").replaceChildren(
    element("h2", "", `${columns.stage[i]}, ${step}: problem ${columns.prompt[i]}, rollout ${columns.sample[i]}`),
    factList(i, trajectory), selectionBox(i), colourControls(i, repaint), promptBox(prompt), transcript);
  byId("trajectory").scrollTop = 0;
  const group = document.querySelector(".group");
  group.scrollTop = group.querySelector(".selected").offsetTop - group.offsetTop - group.clientHeight / 2;
  repaint();
}

function factList(i, trajectory) {
  const fact = (name, value, classes) => element("div", "", element("span", "", `${name} `), element("b", classes, value));
  const facts = [
    fact("verdict", columns.verdict[i].replace("_", " "), result(i)),
    fact("answer", trajectory.answer ?? "none"), fact("expected answer", trajectory.gold), fact("stop reason", columns.stop[i].replace("_", " ")),
    fact("turns", columns.turns[i]), fact("tokens", columns.tokens[i]),
    fact("tool calls", `${columns.calls[i]}, ${columns.errors[i]} failed`),
    fact("p_err", columns.p_err[i].toFixed(2)), fact("p_format", columns.p_format[i].toFixed(2)),
    fact("mean surprisal", `${(columns.surprisal[i] ?? 0).toFixed(3)} nats`),
  ];
  if (columns.entropy[i] !== null) facts.push(fact("mean entropy", `${columns.entropy[i].toFixed(3)} nats`));
  if (columns.slice[i]) facts.push(fact("slice", columns.slice[i]));
  facts.push(fact("duration", `${trajectory.seconds} s`));
  if (trajectory.error) facts.push(fact("error", trajectory.error, "lost"));
  return element("div", "facts", ...facts);
}

const GROUP_COLUMNS = ["rollout", "result", "calls", "failed", "p_err", "p_format", "p_total", "weight", "tokens", "selection"];
const TEXT_COLUMNS = ["result", "selection"];

function selectionBox(i) {
  const members = groups.get(groupKey(i));
  const explanation = table.reasons[columns.stage[i]][columns.reason[i]] ?? columns.reason[i];
  const correct = members.filter(isCorrect);
  const wrong = members.filter((member) => !isCorrect(member) && !isLost(member));
  const kept = (rows) => rows.filter((row) => columns.kept[row]).length;
  const counts = columns.reason[i]
    ? `Group: ${members.length} rollouts of this problem. The update contains ${kept(correct)} of ${correct.length} correct and ${kept(wrong)} of ${wrong.length} wrong rollouts.`
    : `Group: ${members.length} rollouts of this problem, ${correct.length} correct.`;
  const isWeighted = table.weighted[columns.stage[i]]; // only this resampling mode draws with weights
  const cell = (position, content) => element("td", TEXT_COLUMNS.includes(GROUP_COLUMNS[position]) ? "text" : "", content);
  const rows = members.map((member) => {
    const weight = isWeighted && columns.reason[member] && isCorrect(member) ? (1 / (penalty(member) + table.delta)).toFixed(2) : "–";
    const cells = [columns.sample[member], element("span", result(member), result(member)), columns.calls[member], columns.errors[member],
      columns.p_err[member].toFixed(2), columns.p_format[member].toFixed(2), penalty(member).toFixed(2), weight, columns.tokens[member], selection(member)];
    const row = element("tr", member === i ? "selected" : "", ...cells.map((content, position) => cell(position, content)));
    row.addEventListener("click", () => select(member));
    return row;
  });
  const headings = GROUP_COLUMNS.map((name) => element("th", TEXT_COLUMNS.includes(name) ? "text" : "", name));
  return element("div", "box",
    element("h3", "", "Selection by Resample-on-Correct"), element("p", "", element("b", "", selection(i)), `. ${explanation}`), element("p", "soft", counts),
    element("div", "group", element("table", "", element("thead", "", element("tr", "", ...headings)), element("tbody", "", ...rows))));
}

function promptBox(prompt) {
  return element("div", "turn", element("h3", "", "prompt"), element("div", "tokens", prompt));
}

const MODES = { high: "top 20 %", shade: "shaded by value", kind: "by kind of token", none: "none" };
const REGIONS = { reasoning: "reasoning", reflection: "reflection on a tool response", code: "code", answer: "answer" };

function colourControls(i, repaint) {
  const mode = element("select", "", ...Object.entries(MODES).map(([value, label]) => option(value, label)));
  mode.value = display.mode;
  mode.addEventListener("input", () => { display.mode = mode.value; repaint(); });
  const measures = columns.entropy[i] === null ? ["surprisal"] : ["surprisal", "entropy"];
  const measure = element("select", "", ...measures.map((value) => option(value, value)));
  measure.value = display.measure;
  measure.addEventListener("input", () => { display.measure = measure.value; repaint(); });
  const forkingKey = element("span", "tokens", element("span", "fork", "forking word"));
  return element("div", "colours", element("label", "", "colours ", mode), element("label", "", "measure ", measure),
    ...Object.entries(REGIONS).map(([name, label]) => element("span", `key ${name}`, label)), forkingKey,
    element("span", "soft", "Point at a token to see its values."));
}

function turnElements(trajectory) {
  const high = new Set(trajectory.high[display.measure]);
  let tokenCount = 0;
  let modelTurns = 0;
  return trajectory.turns.map((turn) => {
    if (turn.kind === "tool") {
      return element("div", "turn tool", element("h3", "", `tool response, ${turn.seconds} s`), element("div", "tokens", turn.text));
    }
    const calls = trajectory.calls.filter((call) => call.turn === modelTurns);
    modelTurns += 1;
    const text = element("div", "tokens");
    const regions = turn.regions.flatMap(([name, count]) => Array(count).fill(name));
    const forking = new Set(turn.forking);
    turn.pieces.forEach((piece, position) => {
      text.append(tokenElement({
        text: piece, region: regions[position], isForking: forking.has(position), isHigh: high.has(tokenCount),
        value: turn[display.measure][position] ?? 0, surprisal: turn.surprisal[position], entropy: turn.entropy[position],
      }));
      tokenCount += 1;
    });
    const heading = `model turn ${modelTurns}, weights ${turn.weights || "unknown"}, ${turn.seconds} s`;
    return element("div", "turn", element("h3", "", heading), text, ...calls.map(callBox));
  });
}

function tokenElement(token) {
  const classes = [];
  if (display.mode === "kind" || display.mode === "shade" || (display.mode === "high" && token.isHigh)) classes.push(token.region);
  if (display.mode !== "none" && token.isForking) classes.push("fork");
  const span = element("span", classes.join(" "), token.text);
  const strength = token.value / table.unitsPerNat / FULL_SHADE_NATS;
  if (display.mode === "shade") span.style.setProperty("--strength", String(Math.min(1, strength)));
  if (display.mode === "kind") span.style.setProperty("--strength", "0.16");
  span.addEventListener("mouseenter", (event) => showTip(event, token));
  span.addEventListener("mouseleave", () => { byId("tip").hidden = true; });
  return span;
}

function callBox(call) {
  const content = [element("pre", "", call.code || "(the call contains no readable code)")];
  if (call.stdin) content.push(element("div", "soft", "standard input"), element("pre", "", call.stdin));
  const status = element("b", call.status === "ok" ? "correct" : "wrong", call.status.replace("_", " "));
  const name = call.name || "tool call";
  return element("details", "", element("summary", "", `${name}: `, status, `, ${call.queue} s in the queue, ${call.run} s execution. Code`), ...content);
}

function showTip(event, token) {
  const nats = (value) => `${(value / table.unitsPerNat).toFixed(2)} nats`;
  const notes = [token.region];
  if (token.isForking) notes.push("forking word");
  if (token.isHigh) notes.push(`top 20 % by ${display.measure}`);
  const lines = [JSON.stringify(token.text), notes.join(", ")];
  if (token.surprisal !== undefined) lines.push(`surprisal ${nats(token.surprisal)} (p = ${Math.exp(-token.surprisal / table.unitsPerNat).toPrecision(2)})`);
  if (token.entropy !== undefined) lines.push(`entropy ${nats(token.entropy)}`);
  const box = byId("tip");
  box.textContent = lines.join("\n");
  box.hidden = false;
  box.style.left = `${Math.max(8, Math.min(event.clientX + 12, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${event.clientY + 18 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 18}px`;
}
