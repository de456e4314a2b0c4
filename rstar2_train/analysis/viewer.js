// The trajectory viewer: filters the table of all trajectories, and lists them. trajectory.js shows the selected one.
// The page of rstar2 analyse: data/index.js calls rstar2.index with the table as columns. data/chunk-N.js calls
// rstar2.chunk with texts, and is loaded when a trajectory of it is shown or searched. The page of rstar2 view: live.js
// calls rstar2.index and rstar2.extend, and replaces `texts`. Texts are inserted as text nodes only, never as markup.
"use strict";

const ROW_HEIGHT = 46; // pixels, as in style.css
const CACHED_CHUNKS = 8;
const FULL_SHADE_NATS = 3; // value with the strongest shade
const byId = (id) => document.getElementById(id);
let table = null; // argument of rstar2.index
let columns = null;
let rowCount = 0;
let groups = new Map(); // group key -> rows
let isStarted = false;
let visible = []; // rows that pass the filters, in list order
let selected = -1;
let compared = -1; // rollout next to the selected one; -1: none
let textMatches = null; // rows that contain the search text; null: no search
let searchNumber = 0; // number of the latest search; an older search stops
const display = { mode: "high", measure: "surprisal" };

// -- data ----------------------------------------------------------------------------------------------------------

const chunks = new Map(); // number -> promise of {prompts, rows}, least recently used first
const pendingChunks = new Map(); // number -> resolve function of its promise

globalThis.rstar2 = {
  index(data) {
    const shown = selected >= 0 ? [rowKey(selected), compared >= 0 ? rowKey(compared) : ""] : null;
    table = data; columns = data.columns; rowCount = 0; groups = new Map();
    addRows(columns.stage.length);
    if (!isStarted) { start(); return; }
    const rows = new Map(Array.from({ length: rowCount }, (_, i) => [rowKey(i), i]));
    [selected, compared] = shown ? shown.map((key) => rows.get(key) ?? -1) : [-1, -1];
    writeHash();
    setChoices();
    searchText(); // calls filter
  },
  extend(added) {
    for (const name of Object.keys(columns)) for (const value of added[name]) columns[name].push(value);
    addRows(columns.stage.length);
    setChoices();
    const [list, before] = [byId("list"), visible.length];
    if (byId("text").value) searchText(); else filter();
    if (byId("order").value === NEWEST && list.scrollTop > 0) list.scrollTop += (visible.length - before) * ROW_HEIGHT;
  },
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

// Source of texts: load(i) returns a promise of {prompt, row}; search(text, onMatches) calls onMatches with rows.
let texts = {
  async load(i) {
    const data = await loadChunk(columns.chunk[i]);
    const row = data.rows[columns.place[i]];
    return { prompt: data.prompts[row.prompt], row };
  },
  missing: "The folder of this page is incomplete; copy it again or rerun rstar2 analyse.",
  async search(text, onMatches) {
    const members = Array.from({ length: table.chunks }, () => []);
    for (let i = 0; i < rowCount; i += 1) members[columns.chunk[i]].push(i);
    for (let number = 0; number < table.chunks; number += 1) {
      const data = await loadChunk(number);
      const prompts = data.prompts.map((prompt) => prompt.toLowerCase().includes(text));
      const matches = members[number].filter((i) => {
        const trajectory = data.rows[columns.place[i]];
        const response = () => trajectory.turns.map((turn) => turn.text ?? turn.pieces.join("")).join("").toLowerCase();
        return prompts[trajectory.prompt] || columns.prompt[i].toLowerCase().includes(text) || response().includes(text);
      });
      const note = number + 1 < table.chunks ? `; searched ${number + 1} of ${table.chunks} files …` : "";
      if (!onMatches(matches, note)) return;
    }
  },
};

function addRows(end) {
  for (; rowCount < end; rowCount += 1) {
    const key = groupKey(rowCount);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(rowCount);
  }
}

const groupKey = (i) => JSON.stringify([columns.stage[i], columns.set[i], columns.step[i], columns.prompt[i]]);
const rowKey = (i) => groupKey(i) + columns.sample[i];
const penalty = (i) => columns.p_err[i] + columns.p_format[i];
const isLost = (i) => columns.verdict[i] === "internal" || columns.stop[i] === "infrastructure";
const isCorrect = (i) => columns.reward[i] > 0;
const result = (i) => isLost(i) ? "lost" : isCorrect(i) ? "correct" : "wrong";
const stepName = (i) => columns.set[i] === "training" ? `step ${columns.step[i]}` : columns.set[i] === "filter" ? `slice ${columns.step[i]}` : "evaluation";
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
const NEWEST = "newest first";
const ORDERS = {
  "as sampled": null,
  [NEWEST]: (i) => -i,
  "longest first": (i) => -columns.tokens[i],
  "shortest first": (i) => columns.tokens[i],
  "most failed calls first": (i) => -columns.errors[i],
  "highest penalty first": (i) => -penalty(i),
  "highest mean surprisal first": (i) => -(columns.surprisal[i] ?? 0),
};

function start() {
  isStarted = true;
  setOptions("result", [["", "all"], ...unlabelled(Object.keys(TESTS.result))]);
  setOptions("errors", [["", "all"], ...unlabelled(Object.keys(TESTS.errors))]);
  setOptions("order", unlabelled(Object.keys(ORDERS)));
  if (table.order) byId("order").value = table.order;
  setChoices();
  byId("filters").addEventListener("input", (event) => event.target.id === "text" ? scheduleSearch() : filter());
  byId("list").addEventListener("click", selectByClick);
  byId("list").addEventListener("scroll", () => requestAnimationFrame(drawList));
  addEventListener("resize", drawList);
  addEventListener("keydown", selectByKey);
  addEventListener("hashchange", readHash);
  filter();
  readHash();
}

const unlabelled = (values) => values.map((value) => [value, value]);

// The choices that depend on the rows. A choice that the user made is kept.
function setChoices() {
  const distinct = (name) => [...new Set(columns[name])];
  const reasons = distinct("reason").filter(Boolean).sort();
  const prefixes = [...new Set(reasons.map((reason) => reason.split(":")[0]))];
  const choices = {
    stage: unlabelled(distinct("stage")),
    set: unlabelled(distinct("set")),
    stop: unlabelled(distinct("stop").sort()),
    reason: [...prefixes.map((prefix) => [prefix, `${prefix}: any`]), ...unlabelled(reasons)],
  };
  for (const [id, pairs] of Object.entries(choices)) {
    const isSame = byId(id).options.length === pairs.length + 1 && pairs.every(([value], place) => byId(id).options[place + 1].value === value);
    if (isSame) continue; // a list that the user has opened stays open
    const chosen = byId(id).value;
    setOptions(id, [["", "all"], ...pairs]);
    byId(id).value = pairs.some(([value]) => value === chosen) ? chosen : "";
  }
  byId("scored-label").hidden = !columns.entropy.some((value) => value !== null);
  showAbout();
}

function showAbout() {
  byId("about").textContent = `${rowCount.toLocaleString("en")} of ${table.trajectories.toLocaleString("en")} trajectories, in complete groups`;
}

// [column, ids of its lowest and highest value]
const RANGES = [[(i) => columns.step[i], "step"], [penalty, "penalty"], [(i) => columns.tokens[i], "tokens"], [(i) => columns.reward[i], "reward"]];

function filter() {
  const value = (id) => byId(id).value;
  const number = (id, fallback) => value(id) === "" ? fallback : Number(value(id));
  const tests = RANGES.filter(([, id]) => value(`${id}-from`) || value(`${id}-to`)).map(([key, id]) => {
    const [lowest, highest] = [number(`${id}-from`, -Infinity), number(`${id}-to`, Infinity)];
    return (i) => key(i) >= lowest && key(i) <= highest;
  });
  for (const name of ["stage", "set", "stop"]) if (value(name)) { const expected = value(name); tests.push((i) => columns[name][i] === expected); }
  for (const name of ["result", "errors"]) if (value(name)) tests.push(TESTS[name][value(name)]);
  if (value("reason")) { const reason = value("reason"); tests.push((i) => columns.reason[i] === reason || columns.reason[i].startsWith(`${reason}:`)); }
  if (value("prompt")) { const prompt = value("prompt").toLowerCase(); tests.push((i) => columns.prompt[i].toLowerCase().includes(prompt)); }
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
  const matches = new Set();
  try {
    await texts.search(text, (rows, note) => {
      if (current !== searchNumber) return false;
      for (const i of rows) matches.add(i);
      textMatches = matches;
      filter();
      showCount(note);
      return true;
    });
  } catch (error) {
    if (current === searchNumber) showCount(`; search failed: ${error.message}`);
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
  const step = stepName(i);
  const row = element("div", `row${i === selected ? " selected" : ""}`,
    element("div", "", element("b", result(i), result(i)), ` ${columns.stage[i]}, ${step}: ${columns.prompt[i]} #${columns.sample[i]}`),
    element("div", "second", `${columns.tokens[i]} tokens · ${counted(columns.calls[i], "call")}, ${columns.errors[i]} failed · p_total ${penalty(i).toFixed(2)} · ${selection(i)}`));
  row.style.top = `${position * ROW_HEIGHT}px`;
  return row;
}

// By the position: the elements of the rows may be replaced while the button of the mouse is down.
function selectByClick(event) {
  const list = byId("list");
  const position = Math.floor((event.clientY - list.getBoundingClientRect().top + list.scrollTop) / ROW_HEIGHT);
  if (position >= visible.length) return;
  select(visible[position]);
  byId("trajectory").scrollIntoView({ block: "nearest" });
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
