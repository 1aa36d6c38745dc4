"use strict";
const byId = (id) => document.getElementById(id), main = document.querySelector("main");

byId("theme").onclick = () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
};

// Rows without the words are hidden.
function filter() {
  const words = byId("filter");
  if (!words) return;
  const wanted = words.value.toLowerCase(), rows = [...document.querySelectorAll("#rows tbody tr")];
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  byId("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} shown`;
}
main.addEventListener("input", filter);
filter();

// The page of a run that goes on asks for what is new, until it has ended or its server is gone. A part that somebody
// reads stays as it is: what was opened there, the words of the filter, and where the keyboard is.
const drawn = new Map();
function put(html) {
  const fresh = document.createElement("template"), chosen = getSelection();
  fresh.innerHTML = html;
  const parts = [...fresh.content.children], before = new Map([...main.children].map((each) => [each.dataset.part, each]));
  let last = null;
  for (const part of parts) {
    const name = part.dataset.part, old = before.get(name), text = part.outerHTML;
    before.delete(name);
    const reads = old && (old.contains(document.activeElement) || (!chosen.isCollapsed && chosen.containsNode(old, true)));
    if (reads || (old && drawn.get(name) === text)) { last = old; continue; }
    drawn.set(name, text);
    if (old) {
      for (const each of old.querySelectorAll("details")) {
        const same = part.querySelector(`details[data-part="${CSS.escape(each.dataset.part)}"]`);
        if (same) same.open = each.open;
      }
      const words = old.querySelector("#filter"), at = old.querySelector(".tall")?.scrollTop;
      old.replaceWith(part);
      if (words) byId("filter").value = words.value;
      if (at) part.querySelector(".tall").scrollTop = at;
    } else if (last) last.after(part); else main.prepend(part);
    last = part;
  }
  for (const old of before.values()) old.remove();
  filter();
}
async function follow() {
  try {
    const answer = await fetch("data", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const data = await answer.json();
    byId("phase").outerHTML = data.phase;
    put(data.main);
    if (data.going) setTimeout(follow, 2000);
  } catch {
    byId("phase").textContent = "◌ its page is no longer served";
  }
}
if (document.body.className === "live") setTimeout(follow, 1000);
