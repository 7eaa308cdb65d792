"use strict";
// Draws the charts that a page declares (charts/specs.py): drag to zoom, click on a mark for its trial; by the keyboard
// left and right read off, plus and minus zoom, 0 shows the whole, Enter opens the trial.
const charts = new WeakMap(); // element -> what is drawn in it
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
const colours = () => [...Array(8).keys()].map((index) => style(`c${index}`));
const dark = matchMedia("(prefers-color-scheme: dark)");
const coarse = matchMedia("(pointer: coarse)");
const WHOLE = { type: "dataZoom", start: 0, end: 100 };
const TABLE_ROWS = 500;
const MOST_NAMED = 4; // rows of names

function write(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : value ?? "–";
}

// The colour of a series: an index or a name of the style sheet's, or a colour.
const paint = (colour) => style(Number.isInteger(colour) ? `c${colour}` : colour) || colour;

// What a declaration names and JSON cannot hold: how an interval, or a band of them, is drawn.
function place({ coordSys }, api, x, y) { // what is not above 0 ends at the foot of a logarithmic axis
  const [across, up] = api.coord([x, y]);
  return [across, Number.isFinite(up) ? up : coordSys.y + coordSys.height];
}
const DRAWN = {
  band(params, api) {
    if (params.dataIndexInside) return; // the first row draws all
    const rows = [...Array(params.dataInsideLength).keys()].filter((row) => Number.isFinite(api.value(2, row)));
    const side = (column) => rows.map((row) => place(params, api, api.value(0, row), api.value(column, row)));
    return { type: "polygon", silent: true, shape: { points: [...side(3), ...side(2).reverse()] }, style: { fill: api.visual("color"), opacity: 0.15 } };
  },
  bars(params, api) {
    if (!Number.isFinite(api.value(2))) return;
    const [[x, y1], [, y2]] = [2, 3].map((column) => place(params, api, api.value(0), api.value(column)));
    const line = (shape) => ({ type: "line", shape, style: { stroke: api.visual("color"), lineWidth: 1.5 } });
    return { type: "group", children: [line({ x1: x, x2: x, y1, y2 }), ...[y1, y2].map((y) => line({ x1: x - 3, x2: x + 3, y1: y, y2: y }))] };
  },
  interval(params, api) {
    if (!Number.isFinite(api.value(2))) return;
    const [[x1, y], [x2]] = [2, 3].map((column) => api.coord([api.value(column), api.value(0)]));
    const line = (shape) => ({ type: "line", shape, style: { stroke: style("c0"), lineWidth: 2 } });
    return { type: "group", children: [line({ x1, x2, y1: y, y2: y }), ...[x1, x2].map((x) => line({ x1: x, x2: x, y1: y - 5, y2: y + 5 }))] };
  },
};

// Lines of parallel coordinates by what they are.
const LINES = {
  "best fifth": { width: 1.6, opacity: 0.8, color: "c1" },
  "other trials": { width: 1, opacity: 0.25, color: "c0" },
  "trials out of the ranges": { width: 1, opacity: 0.08, color: "c7" },
};

// Ticks with texts in place of their numbers.
function labelled(labels, color) {
  const customValues = labels.map(([at]) => at), texts = new Map(labels);
  return { axisLabel: { color, lineHeight: 14, hideOverlap: true, customValues, formatter: (at) => texts.get(at) ?? "" }, axisTick: { customValues } };
}

// A logarithmic axis ends at 1, 2 or 5 times a power of ten, not up to a decade away from what is drawn.
function roundOff(value, isUp) {
  if (!(value > 0 && value < Infinity)) return value;
  const power = 10 ** Math.floor(Math.log10(value)), at = value / power, steps = [1, 2, 5, 10];
  return Number((power * (isUp ? steps.find((step) => step >= at * (1 - 1e-9)) : steps.findLast((step) => step <= at * (1 + 1e-9)))).toPrecision(6));
}
const LOG = { min: ({ min }) => roundOff(min, false), max: ({ max }) => roundOff(max, true) };

// The names of lines stand in rows below the chart, which is so much taller; of very many a reader turns the pages.
function arrange({ option: { series, xAxis, yAxis, parallelAxis }, legend, height }, width) {
  const names = [...new Set(series.map(({ name }) => name))];
  const isNamed = legend && (series.filter(({ type }) => type === "line").length > 1 || parallelAxis || series.some(({ colour }) => colour));
  let rows = 1, used = 0;
  for (const { length } of xAxis ? names : []) {
    const size = 34 + 6.5 * length;
    [rows, used] = used && used + size > width - 16 ? [rows + 1, size] : [rows, used + size];
  }
  const type = xAxis && rows <= MOST_NAMED ? "plain" : "scroll", bottom = 22 * (type === "plain" ? rows : 1);
  return {
    height: height + (isNamed ? bottom - 22 : 0),
    legend: isNamed ? { type, bottom: 0, ...(parallelAxis && { left: 8 }), itemWidth: 16, itemGap: 8, textStyle: { color: style("ink") }, pageTextStyle: { color: style("soft") }, pageIconColor: style("link"), inactiveColor: style("line") } : { show: false },
    grid: { left: 12, right: 18, top: yAxis?.name ? 30 : 10, bottom: isNamed ? bottom + 18 : 8, outerBounds: { left: 0, right: 0, top: 0, bottom: isNamed ? bottom + 10 : 0 } },
  };
}

function option(spec, frames, width) {
  const known = spec.option, lines = known.series.filter(({ type }) => type === "line"), { legend, grid: room } = arrange(spec, width);
  const soft = style("soft"), grid = style("line");
  const axis = (own) => own && {
    nameLocation: "middle", nameGap: 28, nameTextStyle: { color: soft }, axisLabel: { color: soft, hideOverlap: true, ...(own.type === "category" && { interval: 0 }), ...(own.min != null && { showMinLabel: false, showMaxLabel: false }) },
    axisLine: { lineStyle: { color: grid } }, splitLine: { lineStyle: { color: grid } },
    ...(own.type === "log" && LOG), ...(own.name?.endsWith(", 0 to 1") && { min: 0, max: 1 }), ...own, // a name that tells the range has an axis of all of it
    ...(own.labels && labelled(own.labels, soft)),
  };
  const found = {
    ...known, animation: false, color: colours(), textStyle: { fontFamily: "system-ui, sans-serif" },
    dataset: known.dataset.map((own) => own.frame ? frames[own.frame] : own),
    series: known.series.map((own) => {
      const index = Math.max(lines.findIndex(({ name }) => name === own.name), 0);
      const looks = {
        line: { symbol: "circle", symbolSize: 5, lineStyle: { width: 2, type: index < 8 ? "solid" : "dashed" }, emphasis: { focus: "series" } },
        scatter: { symbolSize: coarse.matches ? 11 : 7, itemStyle: { opacity: own.name.endsWith("out of the ranges") ? 0.12 : 0.6, color: paint(own.name.endsWith("out of the ranges") ? 7 : own.colour ?? 0) } },
        parallel: { lineStyle: LINES[own.name] && { ...LINES[own.name], color: style(LINES[own.name].color) }, inactiveOpacity: 0.04 },
        custom: { clip: true, tooltip: { show: false } },
      };
      const inked = own.colour != null && own.type !== "scatter" && { itemStyle: { color: paint(own.colour) }, lineStyle: { color: paint(own.colour), ...own.lineStyle } };
      return { ...looks[own.type], ...own, ...inked, ...(own.renderItem && { renderItem: DRAWN[own.renderItem] }), ...(own.markLine && { markLine: { ...own.markLine, lineStyle: { color: soft } } }) };
    }),
    // Drawn as a picture, text of a user's is no HTML; and the page's policy allows no style in HTML.
    tooltip: {
      renderMode: "richText", trigger: lines.length && !spec.link && !known.series.some(({ type }) => type === "scatter") ? "axis" : "item", confine: true, backgroundColor: style("card"),
      borderColor: grid, textStyle: { color: style("ink"), fontSize: 13 }, formatter: (params) => readOff(found, params),
    },
    legend,
    toolbox: { top: -100, feature: known.dataZoom ? { dataZoom: { filterMode: "none", brushStyle: { color: style("link"), opacity: 0.25 } } } : {} },
    grid: room,
  };
  if (known.dataZoom) found.dataZoom = known.dataZoom.map((own) => ({ ...own, zoomOnMouseWheel: "ctrl", moveOnMouseMove: false, moveOnMouseWheel: false, preventDefaultMouseMove: false }));
  if (known.xAxis) {
    found.xAxis = axis(known.xAxis);
    found.yAxis = axis({ ...known.yAxis, nameLocation: "end", nameGap: 12, nameTextStyle: { color: soft, align: "left" } });
  } else {
    found.grid = undefined;
    found.parallelAxis = known.parallelAxis.map((own) => ({ ...own, ...(width > 150 * known.parallelAxis.length && { nameGap: 12 }) }));
    found.parallel = { left: 50, right: 60, top: 50, bottom: 46, parallelAxisDefault: { nameTextStyle: { color: soft }, axisLabel: { color: style("ink"), textBorderColor: style("card"), textBorderWidth: 4, hideOverlap: true, showMinLabel: true, showMaxLabel: true }, axisLine: { lineStyle: { color: soft } }, axisTick: { lineStyle: { color: soft } }, realtime: false, areaSelectStyle: { width: 24, borderColor: style("link"), color: style("link"), opacity: 0.25 } } };
  }
  return found;
}

function readOff(drawn, params) {
  const all = Array.isArray(params) ? params : [params];
  const own = ({ seriesIndex, dataIndex, name }) => {
    const { series, dataset } = drawn, of = dataset[series[seriesIndex]?.datasetIndex ?? 0];
    return { row: of?.source[dataIndex], dimensions: of?.dimensions, name: series[seriesIndex]?.name ?? name };
  };
  const rows = all.map(own).filter(({ row }) => row);
  if (!rows.length) return "";
  if (!Array.isArray(params)) {
    const [{ row, dimensions, name }] = rows;
    return [name, ...dimensions.map((column, index) => `${column}: ${write(row[index])}`)].join("\n");
  }
  const [{ row, dimensions }] = rows;
  return [`${dimensions[0]} ${write(row[0])}`, ...rows.map(({ name, row }) => `${name}: ${write(row[1])}`)].join("\n");
}

function rowsOf({ dataset, series }) {
  return dataset.flatMap(({ dimensions, source, name }, at) => {
    const of = name ?? series.find(({ datasetIndex }) => (datasetIndex ?? 0) === at)?.name ?? "";
    return source.map((row) => ({ of, row, dimensions }));
  });
}

function save(name, address) {
  const link = Object.assign(document.createElement("a"), { download: name, href: address });
  link.click();
}

function asCsv(drawn) {
  const cell = (value) => {
    const text = typeof value === "string" && /^[=+@\t\r-]/.test(value) ? `'${value}` : String(value ?? ""); // no formula of a spreadsheet
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const heads = new Set();
  return rowsOf(drawn).flatMap(({ of, row, dimensions }) => {
    const head = ["series", ...dimensions].map(cell).join(","), line = [of, ...row].map(cell).join(",");
    if (heads.size && [...heads].at(-1) === head) return [line];
    heads.delete(head);
    heads.add(head);
    return [head, line];
  }).join("\n") + "\n";
}

function makeTable(title, drawn, link) {
  const rows = rowsOf(drawn), table = document.createElement("table"), box = document.createElement("div");
  box.className = "wide";
  box.tabIndex = 0;
  const left = rows.length > TABLE_ROWS ? `; the first ${TABLE_ROWS} of ${rows.length} rows, “CSV” has all` : "";
  table.createCaption().textContent = title + left;
  let head = "";
  for (const { of, row, dimensions } of rows.slice(0, TABLE_ROWS)) {
    if (head !== dimensions.join()) {
      head = dimensions.join();
      const line = table.createTBody().insertRow();
      for (const name of ["series", ...dimensions]) line.append(Object.assign(document.createElement("th"), { textContent: name, scope: "col" }));
    }
    const line = table.tBodies[table.tBodies.length - 1].insertRow();
    for (const [index, value] of [of, ...row].entries()) {
      const cell = line.insertCell(), isTrial = link && dimensions[index - 1] === "number";
      if (isTrial) cell.append(Object.assign(document.createElement("a"), { href: link + value, textContent: value }));
      else cell.textContent = write(value);
    }
  }
  box.append(table);
  return box;
}

function makeRoot(box, spec) {
  const root = document.createElement("div"), canvas = document.createElement("div"), tools = document.createElement("div");
  const readout = document.createElement("p"), note = document.createElement("p");
  root.className = "plot";
  canvas.className = "canvas";
  canvas.style.height = `${arrange(spec, box.clientWidth).height}px`;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", `${spec.title}: arrow keys read it off, plus and minus zoom, 0 shows the whole`);
  tools.className = "tools";
  readout.className = "readout";
  readout.setAttribute("role", "status");
  note.className = "soft";
  root.append(tools, canvas, readout, note);
  box.append(root);
  return { root, canvas, tools, readout, note };
}

function draw(box, frames) {
  const text = box.dataset.chart, known = charts.get(box);
  const framed = text.includes('"frame"') ? document.getElementById("frames")?.dataset.frames : "";
  if (known?.text === text && known.framed === framed) return;
  const spec = JSON.parse(text), drawn = option(spec, frames, box.clientWidth);
  const kind = JSON.stringify({ ...spec.option, dataset: 0, dataZoom: 0 });
  if (known?.kind === kind) { // what is zoomed and hidden stays so
    known.chart.setOption({ dataset: drawn.dataset });
    Object.assign(known, { text, framed, spec, drawn });
    known.parts.note.textContent = spec.note;
    keep(known);
    return;
  }
  known?.chart.dispose();
  known?.parts.root.remove();
  const parts = makeRoot(box, spec), chart = echarts.init(parts.canvas);
  chart.setOption(drawn);
  const own = { text, framed, kind, spec, drawn, chart, parts, at: -1, log: spec.option.yAxis?.type === "log" };
  parts.note.textContent = spec.note;
  charts.set(box, own);
  addTools(own);
  keep(own);
  chart.on("click", ({ seriesIndex, dataIndex }) => open(own, seriesIndex, dataIndex));
  chart.on("axisareaselected", (event) => {
    for (const one of event.batch ?? [event]) narrow(one.parallelAxisId, one.intervals ?? []);
  });
  parts.canvas.addEventListener("keydown", (event) => press(own, event));
  new ResizeObserver(() => {
    if (chart.isDisposed()) return;
    const { height, legend, grid } = arrange(own.spec, box.clientWidth);
    parts.canvas.style.height = `${height}px`;
    if (own.spec.option.xAxis) chart.setOption({ legend, grid });
    chart.resize();
  }).observe(parts.canvas);
}

function open({ spec, drawn }, seriesIndex, dataIndex) {
  const { dimensions, source } = drawn.dataset[drawn.series[seriesIndex]?.datasetIndex ?? 0] ?? {};
  const column = dimensions?.indexOf("number") ?? -1;
  if (spec.link && column >= 0 && source[dataIndex]) location.href = spec.link + source[dataIndex][column];
}

// The ranges that the page's address has, on the axes of parallel coordinates.
function keep({ spec, chart }) {
  for (const { id } of spec.option.parallelAxis ?? []) {
    const range = spec.ranges[id], [low, high] = range ?? [];
    const intervals = range ? [[low ?? -Number.MAX_VALUE, high ?? Number.MAX_VALUE]] : [];
    chart.dispatchAction({ type: "axisAreaSelect", parallelAxisId: id, intervals }, { silent: true });
  }
}

// A range that was dragged along an axis goes into the form of the page; a click beside it on the axis takes it away.
function narrow(path, intervals) {
  const ends = intervals.length ? [Math.min(...intervals.map(([low]) => low)), Math.max(...intervals.map(([, high]) => high))] : [];
  const inputs = ["low", "high"].map((side) => view?.elements[`${side}.${path}`]);
  if (!inputs.every(Boolean)) return;
  for (const [index, input] of inputs.entries()) input.value = ends.length ? Number(ends[index].toPrecision(4)) : "";
  choose();
}

function addTools({ spec, chart, parts, drawn }) {
  const own = charts.get(parts.root.parentElement);
  const add = (text, hint, act) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text, title: hint });
    button.setAttribute("aria-label", `${text}: ${hint}, ${spec.title}`);
    button.addEventListener("click", () => act(button));
    parts.tools.append(button);
    return button;
  };
  if (spec.option.dataZoom) {
    const drag = (isOn) => chart.dispatchAction({ type: "takeGlobalCursor", key: "dataZoomSelect", dataZoomSelectActive: isOn });
    const zoom = add("zoom", "drag to zoom", (button) => {
      const isOn = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", isOn);
      drag(isOn);
    });
    zoom.setAttribute("aria-pressed", !coarse.matches); // a finger that drags scrolls the page
    drag(!coarse.matches);
    add("reset", "show the whole", () => chart.dispatchAction(WHOLE));
    const isPositive = drawn.series.every(({ type, datasetIndex, encode }) => {
      const { dimensions, source } = drawn.dataset[datasetIndex ?? 0], column = typeof encode.y === "string" ? dimensions.indexOf(encode.y) : encode.y;
      return type === "custom" || source.every((row) => row[column] == null || row[column] > 0);
    });
    if (isPositive) {
      add("log", "logarithmic axis", (button) => {
        own.log = !own.log;
        button.setAttribute("aria-pressed", own.log);
        const { min, max } = drawn.yAxis, fixed = Number.isFinite(min) && (min > 0 || !own.log);
        chart.setOption({ yAxis: { type: own.log ? "log" : "value", ...(fixed ? { min, max } : own.log ? LOG : { min: null, max: null }) } });
      }).setAttribute("aria-pressed", own.log);
    }
  }
  let table;
  add("table", "numbers as a table", (button) => {
    button.setAttribute("aria-expanded", !table);
    if (table) table = table.remove();
    else parts.root.append(table = makeTable(spec.title, own.drawn, spec.link));
  }).setAttribute("aria-expanded", false);
  const name = spec.title.replace(/[^\w.-]+/g, "-");
  add("PNG", "download as a picture", () => save(`${name}.png`, chart.getDataURL({ pixelRatio: 2, backgroundColor: style("card") })));
  add("CSV", "download the numbers", () => {
    const address = URL.createObjectURL(new Blob([asCsv(own.drawn)], { type: "text/csv" }));
    save(`${name}.csv`, address);
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  });
}

function press(own, event) {
  const { chart, drawn, parts, spec } = own, { key } = event;
  const seriesIndex = Math.max(drawn.series.findIndex(({ type }) => type === (spec.link ? "scatter" : "line")), 0);
  const rows = drawn.dataset[drawn.series[seriesIndex].datasetIndex ?? 0].source;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    own.at = Math.min(Math.max(own.at + (key === "ArrowLeft" ? -1 : 1), 0), rows.length - 1);
    chart.dispatchAction({ type: "showTip", seriesIndex, dataIndex: own.at });
    parts.readout.textContent = readOff(drawn, { seriesIndex, dataIndex: own.at }).replaceAll("\n", ", ");
  } else if (key === "Enter") {
    open(own, seriesIndex, own.at);
  } else if (key === "0") {
    chart.dispatchAction(WHOLE);
  } else if ((key === "+" || key === "-") && spec.option.dataZoom) {
    const { start, end } = chart.getOption().dataZoom[0], middle = (start + end) / 2, half = (end - start) * (key === "+" ? 0.25 : 1);
    chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start: Math.max(middle - half, 0), end: Math.min(middle + half, 100) });
  } else {
    return;
  }
  event.preventDefault();
}

function drawAll() {
  const framed = document.getElementById("frames")?.dataset.frames;
  const frames = framed ? JSON.parse(framed) : {};
  for (const box of document.querySelectorAll("[data-chart]")) draw(box, frames);
}

drawAll();
document.getElementById("live")?.addEventListener("refreshed", drawAll);
dark.addEventListener("change", () => { // a canvas keeps its colours
  for (const box of document.querySelectorAll("[data-chart]")) {
    charts.get(box)?.chart.dispose();
    charts.get(box)?.parts.root.remove();
    charts.delete(box);
  }
  drawAll();
});
