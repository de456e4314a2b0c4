// The live view: asks the server for new rows and points, gives rows to viewer.js, and draws the curves with uPlot.
"use strict";

const POLL_MILLISECONDS = 2000;
const COLOURS = ["#1f5fbf", "#d9730d", "#17753a"];
const CHART_HEIGHT = 170; // pixels
const HELD_OUT = "evaluation/"; // prefix of the figures that are measured at the end of a stage
let generation = -1; // generation of the server's table that the page has
let points = []; // [stage, step, metric -> value]
let stageNames = [];
const charts = []; // {plot, box, view, marks, steps}

// -- data ----------------------------------------------------------------------------------------------------------

async function ask(path) {
  const response = await fetch(path);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

texts = {
  async load(i) { return ask(`trajectory.json?generation=${generation}&row=${i}`); },
  missing: "The page continues with the next update.",
  async search(text, onMatches) { onMatches(await ask(`search.json?generation=${generation}&text=${encodeURIComponent(text)}`), ""); },
};

async function poll() {
  try {
    const rows = generation < 0 ? 0 : rowCount;
    const news = await ask(`news.json?generation=${generation}&rows=${rows}&points=${points.length}`);
    const isReplaced = news.generation !== generation;
    generation = news.generation;
    if (isReplaced || table === null) rstar2.index({ ...news.table, columns: news.columns, order: NEWEST });
    else if (news.columns.stage.length) rstar2.extend(news.columns);
    points = points.slice(0, news.firstPoint).concat(news.points);
    showStatus(news.status);
    if (isReplaced || news.points.length) drawCharts();
    byId("fault").textContent = news.status.faults.join("; ");
  } catch (error) {
    byId("fault").textContent = error instanceof TypeError ? "rstar2 view has stopped; this page is not updated." : error.message;
  }
  setTimeout(poll, POLL_MILLISECONDS);
}

function showStatus(status) {
  stageNames = status.stages.map((stage) => stage.name);
  table.trajectories = status.stored;
  showAbout();
  const { progress } = status;
  byId("stages").replaceChildren(...status.stages.map((stage) => {
    const chip = element("span", `stage ${stage.phase}`, `${stage.name} (${stage.type})`);
    chip.title = stage.message || { done: "finished", current: "running or next to run", pending: "not started" }[stage.phase];
    return chip;
  }));
  if (!progress) { byId("progress").textContent = "not started"; return; }
  const parts = [`${progress.stage}: ${progress.phase.toLowerCase()}`];
  if (progress.totalSteps) parts.push(`step ${progress.step} of ${progress.totalSteps}`);
  if (progress.rolloutsTotal) parts.push(`rollouts ${progress.rolloutsDone} of ${progress.rolloutsTotal}`);
  if (progress.estimatedRemainingSeconds) parts.push(`about ${Math.ceil(progress.estimatedRemainingSeconds / 60)} min left in the stage`);
  const age = Date.now() / 1000 - progress.updatedAt;
  if (age > 60) parts.push(`last written ${age < 7200 ? `${Math.round(age / 60)} min` : `${Math.round(age / 3600)} h`} ago`);
  byId("progress").textContent = parts.join(", ");
}

// -- curves --------------------------------------------------------------------------------------------------------

// The axis counts the steps of the stages that have the first curve of the plot. Held-out figures are at the end of
// their stage. Returns {x, series, marks: [[x of the start, stage]], steps: x -> [stage, step]}.
function plotData(plot) {
  const metrics = plot.curves.map(([metric]) => metric);
  const values = new Map(); // stage -> step -> metric -> value; the last event of a step counts
  for (const [stage, step, measured] of points) {
    if (!values.has(stage)) values.set(stage, new Map());
    const steps = values.get(stage);
    steps.set(step, { ...steps.get(step), ...measured });
  }
  const columnsByX = new Map();
  const [marks, steps] = [[], new Map()];
  let offset = 0;
  for (const stage of stageNames) {
    const measured = [...(values.get(stage) ?? new Map())].sort(([a], [b]) => a - b);
    const length = Math.max(0, ...measured.filter(([, row]) => metrics[0] in row).map(([step]) => step));
    if (length > 0) marks.push([offset, stage]);
    for (const [step, row] of measured) {
      for (const metric of metrics) {
        if (!(metric in row)) continue;
        const x = metric.startsWith(HELD_OUT) ? offset + length : offset + step;
        if (!columnsByX.has(x)) columnsByX.set(x, {});
        columnsByX.get(x)[metric] = row[metric];
        if (!metric.startsWith(HELD_OUT)) steps.set(x, [stage, step]);
      }
    }
    offset += length;
  }
  const x = [...columnsByX.keys()].sort((a, b) => a - b);
  return { x, series: metrics.map((metric) => x.map((at) => columnsByX.get(at)[metric] ?? null)), marks, steps };
}

function drawCharts() {
  if (!charts.length) {
    for (const plot of table.plots) {
      const box = element("div", "chart", element("h2", "", `${plot.title}, ${plot.unit}`));
      charts.push({ plot, box, view: null, marks: [], steps: new Map() });
      byId("charts").append(box);
    }
  }
  for (const chart of charts) {
    const data = plotData(chart.plot);
    Object.assign(chart, { marks: data.marks, steps: data.steps });
    chart.box.hidden = data.x.length === 0;
    if (chart.box.hidden) continue;
    if (chart.view) chart.view.setData([data.x, ...data.series]);
    else createChart(chart, [data.x, ...data.series]);
  }
  byId("no-curves").hidden = charts.some((chart) => !chart.box.hidden);
}

const shortNumber = (value) => value === null || value === undefined ? "–" : Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(3);

function createChart(chart, data) {
  const axis = { stroke: "#5d6777", grid: { stroke: "#eef0f3", width: 1 }, ticks: { stroke: "#dfe3e9" }, font: "11px system-ui, sans-serif" };
  const series = chart.plot.curves.map(([metric, label], position) => ({
    label, stroke: COLOURS[position], width: 1.5, spanGaps: true, value: (view, value) => shortNumber(value),
    ...(metric.startsWith(HELD_OUT) ? { paths: () => null, points: { show: true, size: 7, fill: COLOURS[position] } } : {}),
  }));
  chart.view = new uPlot({
    width: chartWidth(), height: CHART_HEIGHT, series: [{ label: "step", value: (view, value) => stepLabel(chart, value) }, ...series],
    // The names of the stages are in the upper fifth.
    scales: { x: { time: false }, y: { range: (view, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.25 : 1] } },
    axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000], size: 30 }, { ...axis, size: 48 }],
    hooks: { drawAxes: [(view) => drawStages(view, chart.marks)] },
    cursor: { drag: { x: false, y: false } },
  }, data, chart.box);
  chart.view.over.addEventListener("click", () => {
    const at = chart.steps.get(chart.view.data[0][chart.view.cursor.idx]);
    if (at) showStep(...at);
  });
  chart.box.append(element("p", "", chart.plot.caption));
}

function stepLabel(chart, x) {
  if (x === null || x === undefined) return "–";
  const [stage, step] = chart.steps.get(x) ?? ["held out", ""];
  return `${stage} ${step}`;
}

function drawStages(view, marks) {
  const { ctx, bbox } = view;
  ctx.save();
  ctx.fillStyle = "#5d6777";
  ctx.strokeStyle = "#b9c0cb";
  ctx.textAlign = "left";
  ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  for (const [start, stage] of marks) {
    const x = Math.max(bbox.left, view.valToPos(start, "x", true));
    const line = new Path2D();
    line.moveTo(x, bbox.top);
    line.lineTo(x, bbox.top + bbox.height);
    if (start > 0) ctx.stroke(line);
    ctx.fillText(stage, x + 4 * devicePixelRatio, bbox.top + 10 * devicePixelRatio);
  }
  ctx.restore();
}

function chartWidth() { return Math.max(200, (charts.find((chart) => !chart.box.hidden)?.box.clientWidth ?? 400) - 24); }

function resizeCharts() {
  const width = chartWidth();
  for (const chart of charts) if (chart.view && width !== chart.view.width) chart.view.setSize({ width, height: CHART_HEIGHT });
}

// -- navigation ----------------------------------------------------------------------------------------------------

function showPart(name) {
  for (const part of ["curves", "trajectories"]) byId(`show-${part}`).setAttribute("aria-pressed", String(part === name));
  byId("curves").hidden = name !== "curves";
  for (const id of ["side", "trajectory"]) byId(id).hidden = name === "curves";
  if (name === "curves") resizeCharts(); else { drawList(); readHash(); }
}

function showStep(stage, step) {
  for (const input of byId("filters").querySelectorAll("input, select")) {
    if (input.type === "checkbox") input.checked = false;
    else if (input.id !== "order") input.value = "";
  }
  const values = { stage, set: "training", "step-from": step, "step-to": step };
  for (const [id, value] of Object.entries(values)) byId(id).value = value;
  textMatches = null;
  filter();
  showPart("trajectories");
  if (visible.length) select(visible[0]);
}

byId("show-curves").addEventListener("click", () => showPart("curves"));
byId("show-trajectories").addEventListener("click", () => showPart("trajectories"));
addEventListener("resize", resizeCharts);
showPart("curves");
poll();
