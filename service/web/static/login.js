// Sends the token once; the server keeps it in a cookie that no script can read.
const form = document.querySelector("form");
form.addEventListener("submit", async event => {
  event.preventDefault();
  const body = JSON.stringify({ token: form.elements.token.value.trim() });
  const answer = await fetch("/login", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  if (answer.ok) {
    const next = new URLSearchParams(location.search).get("next") || "/";
    location.href = /^\/(?![\/\\])/.test(next) ? next : "/";
    return;
  }
  document.querySelector("output").value = answer.status === 401 ? "That token is not known, or was revoked." : "That did not work; try again.";
  form.elements.token.select();
});
