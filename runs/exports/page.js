// Shows one candidate at a time: its text, or the changes that the page holds of it.
const stored = document.getElementById("stored");
if (stored) {
  const { lines, candidates, attempts } = JSON.parse(stored.textContent);
  const which = document.getElementById("which");
  const against = document.getElementById("against");
  const code = document.getElementById("code");
  const differs = document.getElementById("differs");
  const CONTEXT = 4;
  const row = (kind, number, text) => {
    const span = document.createElement("span");
    span.className = kind;
    span.dataset.n = number;
    span.textContent = text || " ";
    return span;
  };
  const show = () => {
    const attempt = attempts[which.value];
    const now = candidates[attempt.candidate];
    const compared = against.value && attempt[against.value];
    differs.value = against.value && !compared ? "nothing to compare with: its text" : "";
    if (!compared) {
      code.replaceChildren(...now.map((place, i) => row("", i + 1, lines[place])));
      return;
    }
    const old = candidates[compared.from];
    const rows = [];
    let plus = 0, minus = 0;
    compared.changes.forEach(([kind, i1, i2, j1, j2], at) => {
      if (kind === "equal") {
        const head = at === 0 ? 0 : CONTEXT;
        const tail = at === compared.changes.length - 1 ? 0 : CONTEXT;
        const cut = j2 - j1 - head - tail;
        for (let j = j1; j < j2; j++) {
          if (cut > 1 && j === j1 + head) {
            rows.push(row("cut", "", `... ${cut} lines that are the same`));
            j += cut;
            if (j >= j2) break;
          }
          rows.push(row("", j + 1, lines[now[j]]));
        }
        return;
      }
      for (let i = i1; i < i2; i++) rows.push(row("minus", "-", lines[old[i]]));
      for (let j = j1; j < j2; j++) rows.push(row("plus", `+ ${j + 1}`, lines[now[j]]));
      minus += i2 - i1;
      plus += j2 - j1;
    });
    differs.value = `lines added: ${plus}, removed: ${minus}`;
    code.replaceChildren(...rows);
  };
  which.addEventListener("change", show);
  against.addEventListener("change", show);
  const follow = () => {
    const key = location.hash.startsWith("#code-") ? location.hash.slice(6) : "";
    if (key in attempts) {
      which.value = key;
      show();
      document.getElementById("candidates").scrollIntoView();
      which.focus({ preventScroll: true });
    }
  };
  addEventListener("hashchange", follow);
  show();
  follow();
}
const unfold = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", unfold);
unfold();
