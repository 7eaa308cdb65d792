"use strict";
// The table of trials: completes columns and paths in conditions, and does something with the trials that are ticked.
const choice = document.getElementById("choice");
const paths = choice.dataset.known.split(" ").map((name) => name.replace(/^params\.(?=(task|model|optimizer|averaging|learning|training|transfer|architecture)\.)/, ""));
const WORDS = ["AND", "OR", "NOT", "IS NULL", "BETWEEN", "LIKE"];
const MOST = 8;

// A list below a field of what the word at the cursor may become; up and down choose, Enter or Tab take, Escape closes.
function complete(input) {
  const list = Object.assign(document.createElement("ul"), { id: `${input.id}-words`, hidden: true });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", `words for ${input.id}`);
  list.className = "words-list";
  input.after(list);
  for (const [name, value] of Object.entries({ role: "combobox", "aria-controls": list.id, "aria-expanded": "false", "aria-autocomplete": "list" })) input.setAttribute(name, value);
  let at = -1;
  const word = () => input.value.slice(0, input.selectionStart).match(/[\w.]*$/)[0];
  function close() {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }
  function take(text) {
    const end = input.selectionStart, start = end - word().length;
    input.setRangeText(text + " ", start, end, "end");
    close();
  }
  function mark(next) {
    at = (next + list.children.length) % list.children.length;
    for (const [index, item] of [...list.children].entries()) item.setAttribute("aria-selected", index === at);
    input.setAttribute("aria-activedescendant", list.children[at].id);
  }
  function offer() {
    const typed = word().toLowerCase();
    const found = typed ? [...paths, ...WORDS].filter((one) => one.toLowerCase().includes(typed) && one.toLowerCase() !== typed).slice(0, MOST) : [];
    list.replaceChildren(...found.map((text, index) => {
      const item = Object.assign(document.createElement("li"), { textContent: text, id: `${list.id}-${index}` });
      item.setAttribute("role", "option");
      item.addEventListener("mousedown", (event) => { event.preventDefault(); take(text); });
      return item;
    }));
    at = -1;
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
  }
  input.addEventListener("input", offer);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") mark(at + (event.key === "ArrowDown" ? 1 : -1));
    else if ((event.key === "Enter" || event.key === "Tab") && at >= 0) take(list.children[at].textContent);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
}

for (const id of ["where", "group"]) complete(document.getElementById(id));
// Columns are in the address as soon as they are ticked; the columns that a page has of itself need no name there.
choice.addEventListener("change", (event) => event.target.name === "column" && choice.requestSubmit());

function showTicked() {
  const ticked = [...document.querySelectorAll(".tick:checked")];
  document.getElementById("ticked").textContent = ticked.length ? `${ticked.length} ticked` : "Tick trials to compare them.";
  for (const button of document.querySelectorAll("[data-act], [data-mark]")) button.disabled = !ticked.length;
  return ticked;
}

async function act(name) {
  const ticked = showTicked();
  if (name === "curves") {
    location.href = `/studies/${chosen.dataset.study}?trials=${ticked.slice(0, 16).map(({ value }) => value).join(",")}`;
    return;
  }
  const text = ticked.map((box) => box.dataset[name]).join("\n"), shown = document.getElementById("copied");
  shown.textContent = text;
  shown.hidden = false;
  try {
    await navigator.clipboard.writeText(text);
    document.getElementById("ticked").textContent = "copied";
  } catch { // without TLS, or where the browser does not allow it, a person copies what is shown
    getSelection().selectAllChildren(shown);
    document.getElementById("ticked").textContent = "press Ctrl+C to copy";
  }
}

// What is said of trials is kept by the server, for all who read the study; false: it refused, and says why.
async function mark(values) {
  let answer;
  try {
    answer = await fetch(`/studies/${chosen.dataset.study}/trials/marks`, { method: "POST", body: new URLSearchParams(values) });
  } catch {
    tell("no connection; nothing was changed");
    return false;
  }
  if (answer.status === 204) return true;
  tell(new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(".error")?.textContent ?? "log in again");
  return false;
}

async function star(button) {
  const isOn = button.getAttribute("aria-pressed") !== "true";
  if (!await mark({ number: button.dataset.star, starred: isOn ? "1" : "0" })) return;
  button.setAttribute("aria-pressed", isOn);
  button.textContent = isOn ? "★" : "☆";
  const all = document.getElementById("starred"), count = Number(all.textContent.match(/\d+/)[0]) + (isOn ? 1 : -1);
  all.hidden = !count;
  all.textContent = `show ${count} starred`;
}

async function markTicked(event) {
  event.preventDefault();
  const { added, note } = marks.elements, name = event.submitter.dataset.mark;
  const said = [name, name === "note" ? note.value : added.value];
  const ticked = showTicked().map(({ value }) => ["number", value]);
  if (await mark([...ticked, said])) location.reload(); // the ticks stay
}

if (chosen) {
  document.getElementById("trials").addEventListener("click", ({ target }) => target.dataset.star && star(target));
  document.getElementById("marks")?.addEventListener("submit", markTicked);
  document.getElementById("trials").addEventListener("change", showTicked);
  chosen.addEventListener("click", ({ target }) => target.dataset.act && act(target.dataset.act));
  showTicked(); // a browser ticks again what was ticked before a reload
}
