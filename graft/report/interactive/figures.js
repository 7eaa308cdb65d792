"use strict";
// A button for each figure whose picture has charts: it draws them in the picture's place, and is pressed at first inside
// an element with `data-live`. A page without scripts, and paper, have the picture.
let drawing; // the promise of the scripts that draw, which the page has packed

async function unpack() {
  const packed = Uint8Array.from(atob(document.getElementById("drawing").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text(); // the page's policy names it by its hash
  document.head.append(script);
}

function makeBoxes(charts) {
  const all = document.createElement("div");
  all.className = "charts";
  for (const chart of charts) {
    const panel = document.createElement("div"), box = document.createElement("div");
    if (chart.heading) panel.append(Object.assign(document.createElement("b"), { textContent: chart.heading }));
    box.className = "chart";
    box.dataset.chart = JSON.stringify(chart);
    panel.append(box);
    all.append(panel);
  }
  return all;
}

for (const metadata of "DecompressionStream" in window ? document.querySelectorAll("figure metadata") : []) {
  const figure = metadata.closest("figure"), picture = metadata.closest("div"), name = figure.querySelector("figcaption b");
  const tools = document.createElement("div");
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "interactive" });
  let boxes;
  tools.className = "tools";
  button.setAttribute("aria-label", `interactive: zoom and read off ${name.textContent.replace(/\.$/, "")}`);
  button.setAttribute("aria-pressed", false);
  button.addEventListener("click", async () => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", isOn);
    figure.classList.toggle("live", isOn);
    if (boxes) return;
    picture.after(boxes = makeBoxes(JSON.parse(metadata.textContent)));
    const isFirst = !drawing;
    await (drawing ??= unpack()); // these draw what they find, and later figures are theirs to draw, too
    if (!isFirst) drawAll();
  });
  tools.append(button);
  picture.before(tools);
  if (figure.closest("[data-live]")) button.click();
}
