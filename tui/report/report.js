"use strict";
let data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const colours = ["var(--accent)", "var(--warn)", "var(--second)", "var(--good)"];

function made(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "line", "path", "circle", "text", "title"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const clock = (s) => (s < 10 ? `${+s.toFixed(1)} s` : `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")}`);
const count = (n) => Math.round(n).toLocaleString("en");

// As wide as its box, so that its letters keep their size on any screen.
const widthOf = (id) => Math.max(260, Math.min(1180, byId(id).clientWidth || 1180));

// Round numbers from 0 to `most`, up to `parts` steps of them.
function ticks(most, parts) {
  const least = (most || 1) / parts, unit = 10 ** Math.floor(Math.log10(least));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= least);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => at * step);
}

function axis(svg, width, y, left, seconds) {
  const across = (t) => left + (t / (seconds || 1)) * (width - left - 16);
  for (const time of ticks(seconds, Math.max(2, Math.floor(width / 110)))) {
    const x = across(time);
    svg.append(made("line", { x1: x, x2: x, y1: 0, y2: y, class: "axis" }));
    svg.append(made("text", { x, y: y + 14, "text-anchor": "middle" }, clock(time)));
  }
  return across;
}

function head() {
  byId("program").textContent = data.program;
  const phase = byId("phase");
  phase.textContent = { done: "✔ done", failed: "✖ failed", interrupted: "■ interrupted" }[data.phase] || `◌ ${data.phase}`;
  phase.className = data.phase;
  byId("error").hidden = !data.error; byId("notes").hidden = !data.notes.length;
  if (data.error) { byId("error").textContent = data.error; }
  if (data.notes.length) { byId("notes").replaceChildren(...data.notes.map((note) => made("li", {}, note))); }
  byId("facts").replaceChildren(...data.facts.map(([name, value]) => made("div", {}, made("dt", {}, name), made("dd", {}, value))));
  byId("theme").onclick = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  };
}

function plan() {
  const columns = [["operator", "code"], ["rows/problem", "number"], ["estimate", "number"], ["tokens", "number"], ["cached", "number"], ["seconds", "number"], ["share", "number"], ["rule", "wide"], ["decisions", "wide"], ["how", "wide"]];
  const keys = ["", "rows", "estimate", "tokens", "cached", "seconds", "", "rule", "decisions", "how"];
  const empty = columns.map((_, at) => keys[at] && data.plan.every((line) => !line[keys[at]]));
  const row = (cells, tag) => made("tr", {}, ...cells.map((cell, at) => [cell, at]).filter(([, at]) => !empty[at]).map(([cell, at]) => made(tag, { class: columns[at][1], ...(tag === "th" ? { scope: "col" } : { "data-title": columns[at][0] }) }, cell)));
  byId("plan").replaceChildren(row(columns.map(([name]) => name), "th"));
  for (const line of data.plan) {
    const bar = line.share === null ? "" : made("span");
    if (bar) bar.append(made("span", { class: "bar", style: `width:${(line.share * 60).toFixed(1)}px` }), ` ${(line.share * 100).toFixed(line.share < 0.1 ? 1 : 0)}%`);
    byId("plan").append(row([line.branch + line.text, line.rows, line.estimate, line.tokens, line.cached, line.seconds, bar, line.rule, line.decisions, line.how], "td"));
  }
}

function timeline() {
  const lane = 64, width = widthOf("timeline"), left = Math.min(150, width / 4), models = data.models.map((model) => model.name);
  const height = lane * models.length;
  const svg = made("svg", { viewBox: `0 0 ${width} ${height + 22}`, role: "img", "aria-label": "time line of models" });
  const across = axis(svg, width, height, left, data.seconds);
  const most = Math.max(1, ...data.steps.map((step) => step[5]));
  models.forEach((name, at) => svg.append(made("text", { x: 0, y: at * lane + lane / 2, class: "label" }, name.length * 6.5 > left ? `…${name.slice(-Math.floor(left / 6.5 - 1))}` : name, made("title", {}, name)), made("line", { x1: 0, x2: width, y1: (at + 1) * lane, y2: (at + 1) * lane, class: "axis" })));
  for (const [model, at, seconds, prefill, decode, sequences] of data.steps) {
    const tall = Math.max(3, (sequences / most) * (lane - 12));
    const index = models.indexOf(model);
    const box = made("rect", { x: across(at), y: (index + 1) * lane - tall, width: Math.max(0.7, across(at + seconds) - across(at) - 0.3), height: tall, fill: prefill > decode ? "var(--warn)" : "var(--accent)", opacity: 0.85 });
    box.append(made("title", {}, `${model}\n${clock(at)}, ${(seconds * 1000).toFixed(1)} ms\n${sequences} sequences, ${prefill} tokens prefilled, ${decode} decoded`));
    svg.append(box);
  }
  byId("timeline").replaceChildren(svg, legend([["mostly decode", "var(--accent)"], ["mostly prefill", "var(--warn)"]]));
}

// Where the time went, as one bar with its words below, and what memory was short of.
function time() {
  byId("time-section").hidden = !data.time.length && !data.short;
  const signs = { decode: "var(--good)", prefill: "var(--accent)", verifier: "var(--second)", "waits for server": "var(--warn)", Python: "var(--text)", idle: "var(--faint)" };
  const words = data.time.map(([name, share]) => `${name} ${(share * 100).toFixed(share < 0.1 ? 1 : 0)}%`);
  const bar = made("div", { class: "time", role: "img", "aria-label": words.join(", ") }, ...data.time.map(([name, share]) => made("span", { style: `flex:${share};background:${signs[name]}`, title: name })));
  byId("time").replaceChildren(bar, legend(data.time.map(([name], at) => [words[at], signs[name]])));
  byId("short").hidden = !data.short;
  byId("short").textContent = data.short ? `⚠ ${data.short}` : "";
}

function verifier() {
  byId("verifier-section").hidden = !data.verifier.length;
  byId("verifier").replaceChildren(...data.verifier.map((line) => made("p", {}, line)));
}

function legend(entries) {
  return made("p", { class: "hint" }, ...entries.flatMap(([name, colour]) => [made("span", { class: "bar", style: `width:.8em;background:${colour}` }), ` ${name}   `]));
}

function memory() {
  const width = widthOf("memory"), height = 180, left = 60;
  const svg = made("svg", { viewBox: `0 0 ${width} ${height + 22}`, role: "img", "aria-label": "memory over time" });
  const across = axis(svg, width, height, left, data.seconds);
  const most = Math.max(1, ...data.models.map((model) => model.most));
  for (const part of [0, 0.5, 1]) svg.append(made("text", { x: left - 8, y: height - part * (height - 14), "text-anchor": "end" }, count(most * part)));
  data.models.forEach((model, at) => {
    const points = model.held.map((pages, index) => `${across(Math.min((index + 1) * model.width, data.seconds)).toFixed(1)},${(height - (pages / most) * (height - 14)).toFixed(1)}`);
    svg.append(made("path", { d: `M${left},${height} L${points.join(" L")}`, fill: "none", stroke: colours[at % colours.length], "stroke-width": 2, "stroke-dasharray": at ? `${3 * at + 2} 3` : "" }));
  });
  byId("memory").replaceChildren(svg, legend(data.models.map((model, at) => [`${model.name}: at most ${count(model.most)} of ${count(model.pages)} pages, ${model.preemptions} preemptions${waits(model)}`, colours[at % colours.length]])));
}

// How long samples waited for their tokens.
function waits(model) {
  const told = ([half, , most]) => `p50 ${(1e3 * half).toFixed(1)} p99 ${(1e3 * most).toFixed(1)}`;
  const first = model.first_token.length ? `, first token ${told(model.first_token)} ms` : "";
  return model.between_tokens.length ? `${first}, each token ${told(model.between_tokens)} ms` : first;
}

function accuracy() {
  byId("accuracy-section").hidden = !data.accuracy.length;
  if (!data.accuracy.length) return;
  const width = widthOf("accuracy"), height = 220, left = 60;
  const svg = made("svg", { viewBox: `0 0 ${width} ${height + 34}`, role: "img", "aria-label": "accuracy against tokens" });
  const most = Math.max(...data.accuracy.map((group) => group.tokens)) * 1.05;
  const x = (tokens) => left + (tokens / most) * (width - left - 40), y = (share) => height - share * (height - 14);
  for (const part of [0, 0.25, 0.5, 0.75, 1]) svg.append(made("line", { x1: left, x2: width, y1: y(part), y2: y(part), class: "axis" }), made("text", { x: left - 8, y: y(part) + 4, "text-anchor": "end" }, `${part * 100}%`));
  for (const tokens of ticks(most, Math.max(2, Math.floor(width / 110)))) svg.append(made("text", { x: x(tokens), y: height + 16, "text-anchor": "middle" }, count(tokens)));
  svg.append(made("text", { x: width - 40, y: height + 32, "text-anchor": "end" }, "sampled tokens a row"));
  for (const [key, colour, dash] of [["right", "var(--good)", ""], ["greedy", "var(--muted)", "4 4"]]) {
    const groups = data.accuracy.filter((group) => group[key] !== null);
    svg.append(made("path", { d: groups.map((group, at) => `${at ? "L" : "M"}${x(group.tokens).toFixed(1)},${y(group[key]).toFixed(1)}`).join(""), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash }));
    for (const group of groups) svg.append(made("circle", { cx: x(group.tokens), cy: y(group[key]), r: key === "right" ? 5 : 3, fill: colour }, made("title", {}, `${group.rows} rows, ${count(group.tokens)} tokens a row\n${key === "right" ? "right" : "greedy is right"} ${(group[key] * 100).toFixed(0)}%`)));
  }
  byId("accuracy").replaceChildren(svg, legend([["this program", "var(--good)"], ["greedy decoding on the same rows", "var(--muted)"]]));
}

function tree(index) {
  const chosen = data.trees[index];
  byId("tree-asked").textContent = chosen.asked;
  byId("said").replaceChildren(...chosen.said.map((line) => made("p", {}, line)));
  const nodes = chosen.nodes.map(([path, round, score, part, fate, text, mark]) => ({ path, round, score, part, fate, text, mark, key: path.join("."), children: [] }));
  const known = new Map(nodes.map((node) => [node.key, node]));
  const roots = [];
  for (const node of nodes) { const parent = known.get(node.path.slice(0, -1).join(".")); (parent ? parent.children : roots).push(node); node.parent = parent; }
  let line = 0;
  const place = (node) => { if (!node.children.length) node.y = line++; else { node.children.forEach(place); node.y = (node.children[0].y + node.children[node.children.length - 1].y) / 2; } };
  roots.forEach(place);
  const depth = Math.max(1, ...nodes.map((node) => node.path.length)), across = Math.max(200, Math.min(330, 1120 / depth)), row = 19;
  const width = depth * across + 40, height = Math.max(1, line) * row + 16;
  const svg = made("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  const x = (node) => (node.path.length - 1) * across + 14, y = (node) => node.y * row + 14;
  const best = new Set();
  for (let node = nodes.find((each) => each.fate === "answer"); node; node = node.parent) best.add(node);
  const room = Math.floor((across - 40) / 6.3);
  const label = (node) => {
    const shown = `${data.fates[node.fate][0]} ${node.score === null ? "" : node.score.toFixed(3)} ${node.mark && `[${node.mark}] `}${node.text.replace(/\s+/g, " ")}`;
    return shown.length > room ? `${shown.slice(0, room - 1)}…` : shown;
  };
  for (const node of nodes) if (node.parent) {
    const from = x(node.parent) + 16 + label(node.parent).length * 6.3, middle = (from + x(node)) / 2;
    svg.append(made("path", { d: `M${from},${y(node.parent)} C${middle},${y(node.parent)} ${middle},${y(node)} ${x(node) - 7},${y(node)}`, class: best.has(node) ? "edge lives" : "edge" }));
  }
  for (const node of nodes) {
    const colour = node.score === null ? "var(--muted)" : `color-mix(in oklab, var(--good) ${Math.round(node.part * 100)}%, var(--faint))`;
    const dot = made("circle", { cx: x(node), cy: y(node), r: best.has(node) ? 7 : 5, fill: node.fate === "dropped" ? "var(--surface)" : colour, stroke: colour, "stroke-width": 2, class: "node", tabindex: 0 });
    dot.append(made("title", {}, node.text));
    dot.onclick = dot.onfocus = () => show(node, dot);
    svg.append(dot, made("text", { x: x(node) + 11, y: y(node) + 4, class: node.mark ? "label mark" : best.has(node) ? "label" : "" }, label(node)));
  }
  byId("tree").replaceChildren(svg);
  const first = nodes.find((node) => node.mark) || [...best][0] || nodes[0];
  if (first) show(first, null);
}

function show(node, dot) {
  document.querySelectorAll(".node.on").forEach((each) => each.classList.remove("on"));
  if (dot) dot.classList.add("on");
  const steps = [];
  for (let each = node; each; each = each.parent) steps.unshift(`${each.score === null ? "     " : each.score.toFixed(3)}  ${each.text}`);
  byId("node").textContent = `${data.fates[node.fate].join(" ")}${node.round ? `, round ${node.round}` : ""}${node.mark && `, ${node.mark}`}\n\n${steps.join("\n")}`;
}

function trees() {
  byId("trees-section").hidden = !data.trees.length;
  if (!data.trees.length) return;
  const select = byId("tree-row"), chosen = select.selectedOptions[0]?.dataset.row;
  select.replaceChildren(...data.trees.map((each, at) => made("option", { value: at, "data-row": each.row }, `${each.row}  ${each.status}  ${each.answer}`)));
  select.onchange = () => tree(+select.value);
  // That which was chosen before; else the most telling one first: where an answer was lost, or went wrong.
  const before = data.trees.findIndex((each) => each.row === chosen);
  const telling = (each) => (each.nodes.some((node) => node[6]) ? 2000 : 0) + (each.status === "right" ? 1000 : 0) + each.nodes.filter(([, , score]) => score !== null && score < 0.5).length;
  const first = before >= 0 ? before : data.trees.reduce((best, each, at) => (telling(each) > telling(data.trees[best]) ? at : best), 0);
  select.value = first;
  tree(first);
}

function rows() {
  const columns = ["id", "status", "answer", "right answer", "had it", "score", "tokens", "seconds", "error"];
  const draw = (wanted) => {
    const some = data.rows.filter((row) => row.join(" ").toLowerCase().includes(wanted.toLowerCase()));
    const body = some.map((row) => made("tr", {}, ...row.map((value, at) => {
      const shown = at === 1 ? `${data.signs[value]}\u00a0${value}` : value === null ? "" : at === 5 ? value.toFixed(3) : at === 6 ? count(value) : at === 7 ? value.toFixed(2) : value;
      return made("td", { class: at === 1 ? value : at > 4 && at < 8 ? "number" : at === 8 || at === 2 ? "wide" : "", "data-title": columns[at] }, shown);
    })));
    byId("rows").replaceChildren(made("tr", {}, ...columns.map((name, at) => made("th", { scope: "col", class: at > 4 && at < 8 ? "number" : "" }, name))), ...body);
    byId("shown").textContent = `${some.length} of ${data.rows.length}`;
  };
  byId("filter").oninput = (event) => draw(event.target.value);
  draw(byId("filter").value);
}

function draw() { head(); plan(); time(); timeline(); memory(); accuracy(); verifier(); trees(); rows(); }
draw();
let drawn = innerWidth;
addEventListener("resize", () => { if (innerWidth !== drawn) { drawn = innerWidth; timeline(); memory(); accuracy(); } });

// The page of a run that goes on asks for what is new, until it has ended or its server is gone.
async function follow() {
  try {
    const answer = await fetch("data", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    data = await answer.json();
    if (!document.hidden) draw();
  } catch {
    byId("phase").textContent = "◌ its page is no longer served";
    return;
  }
  if (data.going) setTimeout(follow, 2000);
}
if (document.body.className === "live") setTimeout(follow, 1000);
