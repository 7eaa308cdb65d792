"use strict";
// Puts a chart that is zoomed and read off in the place of curves that the server drew: drag to zoom, click twice for
// the whole; by the keyboard left and right, plus and minus.
const drawn = new WeakMap();

// The numbers of an axis, with as many digits as tell them apart; uPlot's own have three behind the point.
function write(_, places, index, room, step) {
  let digits = 0;
  while (digits < 9 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
  return places.map((place) => (Math.abs(place) < 1e6 ? place.toFixed(digits) : place.toPrecision(4)));
}

function draw(box) {
  const text = box.dataset.curves, known = drawn.get(box);
  if (known?.text === text) return;
  const { title, labels, log, steps, lines } = JSON.parse(text);
  const numbers = uPlot.join(lines.map(({ x, y }) => [x, y]));
  const kind = JSON.stringify([log, labels, lines.map(({ name }) => name)]);
  if (known?.kind === kind) { // what is zoomed stays so
    known.text = text;
    known.plot.setData(numbers, !known.isZoomed());
    return;
  }
  known?.root.remove();
  const colour = (name) => getComputedStyle(box).getPropertyValue(`--${name}`);
  const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  const root = document.createElement("div");
  root.className = "plot";
  root.tabIndex = 0;
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", `${title}: arrow keys read it off, plus and minus zoom`);
  box.append(root);
  const plot = new uPlot({
    width: root.clientWidth,
    height: 300,
    scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
    axes: [{ ...axis, label: labels[0], labelSize: 18, size: 34 }, { ...axis, size: 70, values: log ? undefined : write }],
    series: [
      { label: labels[0] },
      ...lines.map(({ name }, index) => ({
        label: name, stroke: colour(`c${index % 8}`), width: 1.8, spanGaps: true, paths: steps ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: numbers[0].length < 40 },
        value: (_, value) => value == null ? "–" : String(Number(value.toPrecision(5))),
      })),
    ],
  }, numbers, root);
  const isZoomed = () => {
    const steps = plot.data[0];
    return plot.scales.x.min > steps[0] || plot.scales.x.max < steps.at(-1);
  };
  root.addEventListener("keydown", ({ key }) => {
    const steps = plot.data[0], index = plot.cursor.idx ?? 0;
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const next = Math.min(Math.max(index + (key === "ArrowLeft" ? -1 : 1), 0), steps.length - 1);
      plot.setCursor({ left: plot.valToPos(steps[next], "x"), top: 0 });
    } else if (key === "+" || key === "-") {
      const { min, max } = plot.scales.x, half = (max - min) * (key === "+" ? 0.25 : 1), middle = steps[index];
      plot.setScale("x", { min: Math.max(middle - half, steps[0]), max: Math.min(middle + half, steps.at(-1)) });
    }
  });
  new ResizeObserver(() => plot.setSize({ width: root.clientWidth, height: 300 })).observe(root);
  drawn.set(box, { text, kind, plot, root, isZoomed });
}

function drawAll() {
  for (const box of document.querySelectorAll("[data-curves]")) draw(box);
}

drawAll();
document.getElementById("live")?.addEventListener("refreshed", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { // a canvas keeps its colours
  for (const box of document.querySelectorAll("[data-curves]")) {
    drawn.get(box)?.root.remove();
    drawn.delete(box);
  }
  drawAll();
});
