// Keys that go through the list on the page; everything else is the browser's.
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = document.activeElement;
  if (at.matches("input, textarea, select, [contenteditable], [role=combobox], .cm-content")) return;
  if (event.key === "/") {
    const filter = document.querySelector("input[type=search]");
    if (filter) { filter.focus(); event.preventDefault(); }
    return;
  }
  const down = event.key === "j" || event.key === "ArrowDown" && at.matches(".row-link");
  const up = event.key === "k" || event.key === "ArrowUp" && at.matches(".row-link");
  if (!down && !up) return;
  const links = [...document.querySelectorAll(".row-link")].filter(link => link.offsetParent);
  if (!links.length) return;
  const place = links.indexOf(at);
  const next = place < 0 ? 0 : Math.min(links.length - 1, Math.max(0, place + (down ? 1 : -1)));
  links[next].focus();
  links[next].scrollIntoView({ block: "nearest" });
  event.preventDefault();
});
