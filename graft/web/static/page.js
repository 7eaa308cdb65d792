"use strict";
// Refreshes the live part of a page whenever the server tells of a change, and shows the trials and ranges that a
// person chooses.
const live = document.getElementById("live");
const view = document.getElementById("view");
const told = document.getElementById("told");
function tell(text) {
  told.textContent = text;
  told.classList.toggle("error", text !== "live");
}

// Changes what differs and leaves the rest where it is: who reads or tabs through the page keeps focus, selection and
// scroll position, and what they opened stays open. Rows that come and go have an id, by which they are known again.
// False: it has to be asked again.
async function refresh() {
  const source = live.dataset.source ?? location.href;
  let answer, text;
  try {
    answer = await fetch(source, { headers: { Accept: "text/html" } });
    text = await answer.text();
  } catch {
    tell("no connection; trying again");
    return false;
  }
  tell(answer.ok ? "live" : `not refreshed: ${answer.status} ${answer.statusText}`);
  if (source !== (live.dataset.source ?? location.href)) return false;
  if (!answer.ok) return answer.status < 429; // what is refused for good is not asked for again
  // A whole page has its live part among the rest; where that is done, it says so by having no `every`.
  const part = new DOMParser().parseFromString(text, "text/html").getElementById("live");
  if (part && !part.dataset.every) delete live.dataset.every;
  const focused = document.activeElement?.id;
  Idiomorph.morph(live, part?.innerHTML ?? text, {
    morphStyle: "innerHTML",
    callbacks: {
      beforeAttributeUpdated: (name, node) => name !== "open" && name !== "checked" && !(name === "value" && node === document.activeElement),
      beforeNodeRemoved: (node) => !node.classList?.contains("plot"), // charts.js put it there
    },
  });
  // Older browsers take the focus from an element that is moved.
  if (focused && document.activeElement === document.body) {
    document.getElementById(focused)?.focus({ preventScroll: true });
  }
  live.dispatchEvent(new Event("refreshed"));
  return true;
}

function follow() {
  let due = false, busy = false, events = null, known = live.dataset.told, late = null;
  async function update() {
    if (busy || !due || document.hidden) return;
    due = false;
    busy = true;
    try { due = !(await refresh()) || due; } finally { busy = false; }
    setTimeout(update, 2000); // a study of many short trials changes every second
  }
  // A browser has six connections to a server: a page that nobody sees must not keep one.
  function listen() {
    if (document.hidden) {
      clearTimeout(late);
      late = null;
      events?.close();
      events = null;
    } else if (!events) {
      events = new EventSource(live.dataset.events);
      events.addEventListener("change", (event) => {
        const { state, planned, counts } = JSON.parse(event.data);
        const standing = [state, planned, ...Object.entries(counts).sort().flat()].join(" ");
        due ||= standing !== known; // the first event tells what the page shows already
        known = standing;
        clearTimeout(late);
        late = null;
        tell("live");
        update();
      });
      events.addEventListener("gone", () => { events.close(); tell("the study is gone"); });
      events.onerror = () => {
        // A stream ends after some minutes, and the browser connects again within two seconds: that is not worth a word.
        late ??= setTimeout(() => tell("no connection; trying again"), 4000);
        if (events?.readyState === EventSource.CLOSED) { // a browser does not ask again what answered with an error
          events = null;
          setTimeout(listen, 10000);
        }
      };
    }
  }
  document.addEventListener("visibilitychange", listen);
  listen();
}

// What is chosen is in the page's address, so that a link to it shows the same.
function choose() {
  if (!view.reportValidity()) return;
  const chosen = new URLSearchParams([...new FormData(view)].filter(([, text]) => text.trim()));
  history.replaceState(null, "", `${view.getAttribute("action")}?${chosen}`);
  live.dataset.source = `${view.getAttribute("action")}/live?${chosen}`;
  refresh();
}

// The studies that are ticked: how many, and whether their number suits what a button does.
const chosen = document.getElementById("chosen");
function countTicked() {
  const ticked = chosen.querySelectorAll("[name=study]:checked").length;
  chosen.querySelector(".tools").hidden = !chosen.querySelector("[name=study]");
  document.getElementById("ticked").textContent = ticked ? `${ticked} ticked` : "Tick studies to compare.";
  for (const button of chosen.querySelectorAll("button")) button.disabled = ticked < (button.name ? 1 : 2);
}
if (chosen?.method === "post") {
  chosen.addEventListener("change", countTicked);
  live.addEventListener("refreshed", countTicked);
  countTicked();
}

if (live?.dataset.events) follow();
if (live?.dataset.every) {
  tell("live");
  const timer = setInterval(() => {
    if (!live.dataset.every) clearInterval(timer);
    else if (!document.hidden) refresh();
  }, 1000 * live.dataset.every);
}
if (view) {
  view.addEventListener("submit", (event) => { event.preventDefault(); choose(); });
  document.addEventListener("change", (event) => event.target.form === view && choose());
}
