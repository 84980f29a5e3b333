"use strict";
// Tables: a click on a column's title sorts by it, numbers as numbers, also that of "below 256"; a second one turns the order
// round. Either way texts without a number come after those with one, and what is missing comes last.
const number = /^(?:[^\d\s]+ )?([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?=$|[\s%×x;])/i;
function sortKey(cell) {
  if ("value" in cell.dataset) return Number(cell.dataset.value);
  if (cell.textContent === "–") return null;
  const found = number.exec(cell.textContent);
  return found ? Number(found[1].replaceAll(",", "")) : cell.textContent;
}
const rank = (key) => (typeof key === "number" ? 0 : key === null ? 2 : 1);
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("th button").forEach((button, column) => {
    button.addEventListener("click", () => {
      const head = button.parentElement;
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.querySelectorAll("th")) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const order = (a, b) => {
        const [x, y] = [sortKey(a.cells[column]), sortKey(b.cells[column])];
        if (typeof x !== typeof y) return rank(x) - rank(y);
        const before = typeof x === "number" ? x - y : x === null ? 0 : x.localeCompare(y);
        return up ? before : -before;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}

// Tables that are wider than their place scroll, and only those are stops of the keyboard.
const widths = new ResizeObserver((changes) => {
  for (const { target } of changes) {
    const scrolls = target.scrollWidth > target.clientWidth;
    const marks = { tabindex: "0", role: "region", "aria-label": target.firstElementChild.getAttribute("aria-label") };
    for (const [name, value] of Object.entries(marks)) scrolls ? target.setAttribute(name, value) : target.removeAttribute(name);
  }
});
for (const table of document.querySelectorAll(".table")) widths.observe(table);

// The explorer of attention maps.
const maps = JSON.parse(document.getElementById("explorer-data").textContent);
const at = (id) => document.getElementById(id);
if (at("explorer")) {
  const select = { data: at("ex-data"), model: at("ex-model"), layer: at("ex-layer"), head: at("ex-head"), sample: at("ex-sample") };
  const canvas = at("ex-map"), info = at("ex-info"), view = at("ex-sample-view");
  let weights = null, tokens = 0, query = 8, key = 4, letters = [];

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const fill = (box, names) => {
    const before = box.selectedIndex;
    box.replaceChildren(...names.map((name, i) => new Option(name, String(i))));
    box.selectedIndex = Math.min(Math.max(before, 0), names.length - 1);
  };
  const chosen = () => {
    const models = maps[Object.keys(maps)[select.data.selectedIndex]];
    return models[Object.keys(models)[select.model.selectedIndex]];
  };
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const sample = () => chosen().samples[select.sample.selectedIndex];
  const isText = () => "tokens" in sample();
  const named = (token) => {
    if (isText()) return `${token} “${sample().tokens[token].replace("\n", "⏎")}”`;
    if (token === 0) return "0 (class token)";
    const side = Math.round(Math.sqrt(tokens - 1));
    return `${token} (patch row ${Math.floor((token - 1) / side) + 1}, column ${((token - 1) % side) + 1})`;
  };

  function options() {
    fill(select.data, Object.keys(maps));
    fill(select.model, Object.keys(maps[Object.keys(maps)[select.data.selectedIndex]]));
    const one = chosen();
    fill(select.layer, one.maps.map((_, i) => String(i + 1)));
    fill(select.head, one.maps[0][0].map((_, i) => String(i + 1)));
    fill(select.sample, one.samples.map((s, i) => ("label" in s ? `${i + 1} (class ${s.label})` : String(i + 1))));
  }

  function update() {
    options();
    const one = chosen();
    tokens = one.tokens;
    const raw = bytes(one.maps[select.layer.selectedIndex][select.sample.selectedIndex][select.head.selectedIndex]);
    weights = Float64Array.from(new Uint16Array(raw.buffer), (level) => level / 65535);
    query = Math.min(query, tokens - 1);
    key = Math.min(key, tokens - 1);
    letters = [];
    if (isText()) writeText();
    draw();
  }

  // Once for a sample: drawing only colours it, so that a letter keeps the focus. One of them is a stop of the keyboard.
  function writeText() {
    const text = document.createElement("div");
    text.className = "text";
    text.setAttribute("role", "listbox");
    text.setAttribute("aria-label", "The sample; the chosen token is the query, and the stronger a token's colour, the more it looks at it. Arrow keys move.");
    letters = sample().tokens.map((token, i) => {
      const span = document.createElement("span");
      span.textContent = token.replace("\n", "⏎");
      span.setAttribute("role", "option");
      span.setAttribute("aria-label", named(i));
      span.addEventListener("click", () => { query = i; draw(); });
      text.append(span, token.length > 1 ? " " : "");
      return span;
    });
    text.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -query, End: tokens - 1 - query };
      if (!(event.key in moves)) return;
      event.preventDefault();
      query = Math.min(tokens - 1, Math.max(0, query + moves[event.key]));
      draw();
      letters[query].focus();
    });
    view.replaceChildren(text);
  }

  function draw() {
    const [paper, ink, accent] = [rgb(style("--paper")), rgb(style("--accent")), style("--accent")];
    const scale = 8;
    canvas.width = canvas.height = tokens * scale;
    const context = canvas.getContext("2d");
    const top = Math.max(...weights) || 1;
    for (let i = 0; i < tokens; i++) {
      for (let j = 0; j < tokens; j++) {
        const share = Math.sqrt(weights[i * tokens + j] / top);
        context.fillStyle = `rgb(${paper.map((p, c) => Math.round(p + share * (ink[c] - p))).join(",")})`;
        context.fillRect(j * scale, i * scale, scale, scale);
      }
    }
    context.strokeStyle = style("--ink");
    context.globalAlpha = 0.5;
    context.strokeRect(0.5, query * scale + 0.5, tokens * scale - 1, scale - 1);
    context.globalAlpha = 1;
    context.lineWidth = 2;
    context.strokeRect(key * scale, query * scale, scale, scale);
    describe();
    drawSample(paper, ink, accent);
  }

  function describe() {
    const local = chosen().locality[select.layer.selectedIndex][select.head.selectedIndex];
    const masked = isText() && key > query; // models of text see what came before
    const weight = masked ? "masked, it comes after the query" : `weight ${weights[query * tokens + key].toFixed(4)}`;
    info.textContent = `Query ${named(query)} → key ${named(key)}: ${weight}. ` +
      `This head, over all samples: effective share of keys ${local.keys.toFixed(2)}, relative distance ${local.distance.toFixed(2)}, largest weight ${local.largest.toFixed(2)}.`;
  }

  function drawSample(paper, ink, accent) {
    const row = weights.subarray(query * tokens, (query + 1) * tokens);
    const top = Math.max(...row) || 1;
    if (isText()) {
      letters.forEach((letter, i) => {
        letter.style.background = `rgba(${ink.join(",")},${(0.85 * row[i] / top).toFixed(3)})`;
        letter.className = i === query ? "query" : "";
        letter.setAttribute("aria-selected", String(i === query));
        letter.tabIndex = i === query ? 0 : -1;
      });
      return;
    }
    const picture = document.createElement("canvas");
    const pixels = bytes(sample().pixels);
    const size = Math.round(Math.sqrt(pixels.length)), side = Math.round(Math.sqrt(tokens - 1)), zoom = 8;
    picture.width = picture.height = size * zoom;
    const context = picture.getContext("2d");
    for (let p = 0; p < pixels.length; p++) {
      context.fillStyle = `rgb(${pixels[p]},${pixels[p]},${pixels[p]})`;
      context.fillRect((p % size) * zoom, Math.floor(p / size) * zoom, zoom, zoom);
    }
    const patch = (size / side) * zoom;
    for (let t = 1; t < tokens; t++) {
      context.fillStyle = `rgba(255,120,40,${(0.75 * row[t] / top).toFixed(3)})`;
      context.fillRect(((t - 1) % side) * patch, Math.floor((t - 1) / side) * patch, patch, patch);
    }
    context.strokeStyle = accent;
    context.lineWidth = 3;
    if (query > 0) context.strokeRect(((query - 1) % side) * patch + 1, Math.floor((query - 1) / side) * patch + 1, patch - 2, patch - 2);
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", "The sample; the brighter a patch, the more the query looks at it");
    view.replaceChildren(picture);
  }

  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    const place = (offset, length) => Math.min(tokens - 1, Math.max(0, Math.floor((offset / length) * tokens)));
    key = place(event.clientX - box.left, box.width);
    query = place(event.clientY - box.top, box.height);
    draw();
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -key], End: [0, tokens - 1 - key] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    query = Math.min(tokens - 1, Math.max(0, query + move[0]));
    key = Math.min(tokens - 1, Math.max(0, key + move[1]));
    draw();
  });
  for (const box of Object.values(select)) box.addEventListener("change", update);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  update();
}
