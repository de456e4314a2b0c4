// The selected trajectory of the viewer, token by token, with its group; and a second rollout of the group next to it.
// Uses the table and the elements of viewer.js.
"use strict";

function readHash() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  if (parameters.get("scored")) { byId("scored").checked = true; display.measure = "entropy"; filter(); }
  const i = parameters.has("t") ? Number(parameters.get("t")) : visible[0];
  const other = parameters.has("with") ? Number(parameters.get("with")) : -1;
  const isRow = (row) => Number.isInteger(row) && row >= 0 && row < rowCount;
  if (isRow(i) && (i !== selected || other !== compared)) select(i, isRow(other) && other !== i ? other : -1);
}

// The address names the shown rows, so that a reload or a copied address shows them.
function writeHash() {
  history.replaceState(null, "", selected < 0 ? "#" : `#t=${selected}${compared >= 0 ? `&with=${compared}` : ""}`);
}

async function select(i, other = -1) {
  if (other < 0 && compared >= 0 && groupKey(i) === groupKey(compared) && i !== compared) other = compared; // stays next to it
  [selected, compared] = [i, other];
  writeHash();
  drawList();
  const isCurrent = () => selected === i && compared === other;
  try {
    const shown = await Promise.all([i, ...(other >= 0 ? [other] : [])].map((row) => texts.load(row)));
    if (isCurrent()) showTrajectories(i, other, shown);
  } catch (error) {
    if (isCurrent()) byId("trajectory").replaceChildren(element("p", "wrong", `${error.message}. ${texts.missing}`));
  }
}

function showTrajectories(i, other, shown) {
  const rows = other >= 0 ? [i, other] : [i];
  if (rows.some((row) => columns.entropy[row] === null)) display.measure = "surprisal";
  const panels = shown.map(({ row }, position) => {
    const transcript = element("div", "");
    const repaint = () => transcript.replaceChildren(...turnElements(row));
    const heading = element("h3", "", `rollout ${columns.sample[rows[position]]}`);
    if (position > 0) heading.append(" ", button("close", "Show only the selected rollout", () => { compared = -1; select(i); }));
    const title = other >= 0 ? [heading, factList(rows[position], row)] : [];
    return { repaint, panel: element("div", "panel", ...title, transcript) };
  });
  const repaint = () => panels.forEach((panel) => panel.repaint());
  const facts = other >= 0 ? [element("p", "soft", commonStart(shown[0].row, shown[1].row))] : [factList(i, shown[0].row)];
  byId("trajectory").replaceChildren(
    element("h2", "", `${columns.stage[i]}, ${stepName(i)}: problem ${columns.prompt[i]}, rollout${rows.length > 1 ? "s" : ""} ${rows.map((row) => columns.sample[row]).join(" and ")}`),
    ...facts, selectionBox(i), colourControls(rows, repaint), promptBox(shown[0].prompt),
    element("div", other >= 0 ? "pair" : "", ...panels.map(({ panel }) => panel)));
  byId("trajectory").scrollTop = 0;
  byId("trajectory").dataset.rows = rows.join(); // the rows that are shown: their texts are loaded
  const group = document.querySelector(".group");
  group.scrollTop = group.querySelector(".selected").offsetTop - group.offsetTop - group.clientHeight / 2;
  repaint();
}

// A sentence on how many tokens two rollouts share before they differ.
function commonStart(first, second) {
  const tokens = (trajectory) => trajectory.turns.filter((turn) => turn.kind === "model").flatMap((turn) => turn.pieces);
  const [a, b] = [tokens(first), tokens(second)];
  let count = 0;
  while (count < Math.min(a.length, b.length) && a[count] === b[count]) count += 1;
  return count === a.length && count === b.length ? "Both rollouts have the same tokens of the model."
    : `The first ${counted(count, "token")} of the model are equal.`;
}

function button(label, title, action) {
  const created = element("button", "", label);
  created.type = "button";
  created.title = title;
  created.addEventListener("click", (event) => { event.stopPropagation(); action(); });
  return created;
}

function factList(i, trajectory) {
  const fact = (name, value, classes) => element("div", "", element("span", "", `${name} `), element("b", classes, value));
  const facts = [
    fact("reward", Number(columns.reward[i].toFixed(4)), result(i)), fact("verdict", columns.verdict[i].replace("_", " "), result(i)),
    fact("answer", trajectory.answer ?? "none"), fact("expected answer", trajectory.gold), fact("stop reason", columns.stop[i].replace("_", " ")),
    fact("turns", columns.turns[i]), fact("tokens", columns.tokens[i]),
    fact("tool calls", `${columns.calls[i]}, ${columns.errors[i]} failed`),
    fact("p_err", columns.p_err[i].toFixed(2)), fact("p_format", columns.p_format[i].toFixed(2)),
    fact("mean surprisal", `${(columns.surprisal[i] ?? 0).toFixed(3)} nats`),
  ];
  if (columns.entropy[i] !== null) facts.push(fact("mean entropy", `${columns.entropy[i].toFixed(3)} nats`));
  if (columns.slice[i]) facts.push(fact("slice", columns.slice[i]));
  facts.push(fact("duration", `${trajectory.seconds} s`));
  if (columns.reason[i]) facts.push(fact("selection", selection(i)));
  if (trajectory.why) facts.push(fact("reason of the reward", trajectory.why));
  if (trajectory.error) facts.push(fact("error", trajectory.error, "lost"));
  return element("div", "facts", ...facts);
}

const GROUP_COLUMNS = ["rollout", "result", "calls", "failed", "p_err", "p_format", "p_total", "weight", "tokens", "selection", ""];
const TEXT_COLUMNS = ["result", "selection", ""];

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
      columns.p_err[member].toFixed(2), columns.p_format[member].toFixed(2), penalty(member).toFixed(2), weight, columns.tokens[member], selection(member),
      member === i || member === compared ? "" : button("compare", "Show this rollout next to the selected one", () => select(i, member))];
    const row = element("tr", member === i ? "selected" : member === compared ? "compared" : "", ...cells.map((content, position) => cell(position, content)));
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

function colourControls(rows, repaint) {
  const mode = element("select", "", ...Object.entries(MODES).map(([value, label]) => option(value, label)));
  mode.value = display.mode;
  mode.addEventListener("input", () => { display.mode = mode.value; repaint(); });
  const measures = rows.some((row) => columns.entropy[row] === null) ? ["surprisal"] : ["surprisal", "entropy"];
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
