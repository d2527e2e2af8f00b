/** Sort a table by a column when its head is clicked: numbers first from the highest, texts from A; then the other way. */
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, i) => head.querySelector("button").onclick = () => {
    const numeric = head.classList.contains("number"), before = head.getAttribute("aria-sort");
    const way = before ? (before === "ascending" ? "descending" : "ascending") : numeric ? "descending" : "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", way);
    const sign = way === "ascending" ? 1 : -1;
    const key = row => numeric ? row.cells[i].dataset.value ?? "" : row.cells[i].textContent;
    const rows = [...body.rows].sort((a, b) => {
      const [one, other] = [key(a), key(b)];
      if (numeric && (one === "" || other === "")) return (one === "") - (other === ""); // what is unknown comes last
      return sign * (numeric ? one - other : one.localeCompare(other, "en", { numeric: true }));
    });
    body.append(...rows);
  });
}

const kinds = { lines, matrices };
document.querySelectorAll("table.sortable").forEach(sortable);
for (const box of document.querySelectorAll(".chart")) {
  const draw = kinds[box.dataset.kind](box, JSON.parse(box.firstElementChild.textContent));
  let width = 0;
  new ResizeObserver(() => { if (box.clientWidth && box.clientWidth !== width) { width = box.clientWidth; draw(); } }).observe(box);
}
addEventListener("scroll", hideTip, { passive: true });
