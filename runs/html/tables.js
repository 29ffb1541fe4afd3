// Tables sort by a click on a heading and filter by words; without scripts they are merely read.
for (const table of document.querySelectorAll("table[data-sort]")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.firstChild.addEventListener("click", () => {
    const cells = [...table.tBodies[0].rows].map(row => ({ row, key: row.cells[column].dataset.k }));
    const numbers = cells.every(({ key }) => key === "" || !isNaN(key));
    // Figures begin with the largest, text with the first letter.
    const before = heading.getAttribute("aria-sort");
    const down = before ? before === "ascending" : numbers;
    const order = (a, b) => numbers ? Number(a) - Number(b) : a.localeCompare(b);
    cells.sort((a, b) => (a.key === "") - (b.key === "") || (down ? -1 : 1) * order(a.key, b.key));
    headings.forEach(other => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    table.tBodies[0].append(...cells.map(({ row }) => row));
  }));
}
for (const input of document.querySelectorAll("input[data-filter]")) {
  const section = document.getElementById(input.dataset.filter);
  const count = section.querySelector("output");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of section.querySelectorAll("tbody tr")) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      shown += !row.hidden;
    }
    count.value = words.length ? `${shown} lines` : "";
  });
}
