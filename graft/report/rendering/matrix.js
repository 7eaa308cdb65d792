"use strict";
// Of reports and of the dashboard: sorts a matrix by a column or a row (best first, then worst first, then as it was),
// and shows a cell's details.
const matrix = document.getElementById("matrix");
const body = matrix.tBodies[0];
const gain = cell => "gain" in cell.dataset ? Number(cell.dataset.gain) : null;
const place = cell => Number(cell.dataset.place);

// What comes first: cells by their gains, those without one last, or `headers` as they were.
function order(headers, cells, direction) {
  const sign = direction === "descending" ? -1 : 1;
  const pairs = headers.map((header, index) => [header, gain(cells[index])]);
  return pairs.sort(([one, a], [other, b]) =>
    (direction === "none" || a === b ? 0 : a === null ? 1 : b === null ? -1 : sign * (a - b)) || place(one) - place(other)
  ).map(([header]) => header);
}

function next(header) {
  const turns = { none: "descending", descending: "ascending", ascending: "none" };
  const direction = turns[header.getAttribute("aria-sort") ?? "none"];
  for (const other of matrix.querySelectorAll(`th[scope=${header.scope}]`)) other.removeAttribute("aria-sort");
  if (direction !== "none") header.setAttribute("aria-sort", direction);
  return direction;
}

function sortRows(header) {
  const rows = [...body.rows];
  const cells = rows.map(row => row.cells[header.cellIndex]);
  for (const first of order(rows.map(row => row.cells[0]), cells, next(header))) body.append(first.parentNode);
}

function sortColumns(header) {
  const top = matrix.tHead.rows[0];
  const headers = [...top.cells].slice(1);
  const wanted = order(headers, [...header.parentNode.cells].slice(1), next(header)).map(cell => cell.cellIndex);
  for (const row of [top, ...body.rows]) row.append(...wanted.map((cells => index => cells[index])([...row.cells])));
}

matrix.addEventListener("click", event => {
  const header = event.target.closest("th[scope]");
  if (header && event.target.closest("button")) (header.scope === "col" ? sortRows : sortColumns)(header);
});

const hint = document.createElement("div");
hint.id = "hint";
hint.hidden = true;
document.body.append(hint);
for (const link of matrix.querySelectorAll("a")) {
  link.dataset.told = link.title;
  link.removeAttribute("title"); // or the browser shows it too
}

function show(event) {
  const link = event.target.closest("a");
  hint.hidden = !link;
  if (!link) return;
  hint.textContent = link.dataset.told;
  const cell = link.getBoundingClientRect();
  hint.style.left = `${Math.max(8, Math.min(cell.left, innerWidth - hint.offsetWidth - 8))}px`;
  hint.style.top = `${cell.bottom + hint.offsetHeight + 14 > innerHeight ? cell.top - hint.offsetHeight - 6 : cell.bottom + 6}px`;
}

for (const kind of ["mouseover", "focusin"]) matrix.addEventListener(kind, show);
for (const kind of ["mouseleave", "focusout"]) matrix.addEventListener(kind, () => { hint.hidden = true; });
addEventListener("scroll", () => { hint.hidden = true; }, { passive: true });
