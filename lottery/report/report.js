"use strict";
// The page is complete without this script, which adds sorting, numbers under the pointer, and a slider.

const made = (tag, text = "", attributes = {}) => {
  const element = document.createElement(tag);
  element.append(text);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};
const shown = value => Math.abs(value) >= 1000 || Number.isInteger(value)
  ? Math.round(value).toLocaleString("en-US")
  : String(Number(value.toPrecision(4)));

// Tables: a button in each head sorts by its column, up, down, and as it was. Empty cells stay at the end.
const valueOf = cell => {
  const text = cell.textContent.trim();
  const plain = text.replace(/[,\s≥%]/g, "").replace("−", "-");
  // Large numbers end in a letter, such as 2.08G.
  const number = Number(plain.replace(/[kMGTPE]$/, letter => `e${3 * " kMGTPE".indexOf(letter)}`));
  return text === "" ? null : Number.isNaN(number) ? text : number;
};
const compare = (first, other) => typeof first === typeof other
  ? (first > other) - (first < other)
  : typeof first === "number" ? -1 : 1;
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => {
    const button = made("button", "", {type: "button"});
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = {ascending: "descending", descending: null}[head.getAttribute("aria-sort")];
      const direction = next === undefined ? "ascending" : next;
      for (const other of heads) other.removeAttribute("aria-sort");
      if (direction) head.setAttribute("aria-sort", direction);
      const sign = direction === "descending" ? -1 : 1;
      const sorted = direction ? rows.map(row => [valueOf(row.cells[place]), row]).sort(([first], [other]) =>
        first === null || other === null ? (first === null) - (other === null) : sign * compare(first, other)
      ).map(([, row]) => row) : rows;
      body.append(...sorted);
    });
  });
}

// Figures: the numbers of the point that is nearest to the pointer, or that the arrow keys have reached.
const tip = made("div", "", {id: "tip", role: "status"});
tip.hidden = true;
document.body.append(tip);
const tell = (lines, name, color, x, y) => {
  tip.replaceChildren();
  if (name) {
    const head = made("b");
    head.style.borderColor = color;
    head.append(made("span", name));
    tip.append(head);
  }
  tip.append(...lines.map(line => made("div", line)));
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, Math.min(x + 14, room - width - 4))}px`;
  tip.style.top = `${y - height - 14 < 4 ? y + 18 : y - height - 14}px`;
};
for (const plot of document.querySelectorAll(".plot[data-panels]")) {
  const panels = JSON.parse(plot.dataset.panels), svg = plot.querySelector("svg");
  if (!panels.length) continue;
  const lines = panels.flatMap(panel => panel.lines.map(line => ({panel, ...line})));
  const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  dot.setAttribute("class", "dot");
  dot.setAttribute("r", 6);
  let line = 0, place = -1;
  const hide = () => { tip.hidden = true; dot.remove(); place = -1; };
  const show = () => {
    const {panel, name, color, points} = lines[line], [across, down, x, y, low, high] = points[place];
    dot.setAttribute("cx", across);
    dot.setAttribute("cy", down);
    svg.append(dot);
    const at = new DOMPoint(across, down).matrixTransform(svg.getScreenCTM());
    const texts = [`${panel.x || "x"}: ${shown(x)}`, `${panel.y || "y"}: ${shown(y)}`];
    if (low !== undefined && low !== high) texts.push(`from ${shown(low)} to ${shown(high)}`);
    if (panel.title) texts.unshift(panel.title);
    tell(texts, name, `var(--c-${color}, #${color})`, at.x, at.y);
  };
  const nearest = event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const inside = ([left, top, right, bottom]) =>
      at.x > left - 8 && at.x < right + 8 && at.y > top - 8 && at.y < bottom + 8;
    let best = 30;  // units of the figure, of 72 to the inch
    place = -1;
    lines.forEach(({panel, points}, index) => {
      if (!inside(panel.box)) return;
      points.forEach(([across, down], which) => {
        const distance = Math.hypot(across - at.x, down - at.y);
        if (distance < best) [best, line, place] = [distance, index, which];
      });
    });
    if (place < 0) hide(); else show();
  };
  plot.addEventListener("pointermove", nearest);
  plot.addEventListener("pointerdown", nearest);
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.tabIndex = 0;
  plot.setAttribute("role", "group");
  plot.setAttribute("aria-label", `${svg.getAttribute("aria-label")}: the arrow keys read the points`);
  plot.addEventListener("keydown", event => {
    const along = {ArrowRight: 1, ArrowLeft: -1}[event.key], over = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (event.key === "Escape") hide();
    if (!along && !over) return;
    event.preventDefault();
    if (place >= 0 && over) line = (line + over + lines.length) % lines.length;
    place = place < 0 ? 0 : place + (along || 0);
    place = Math.max(0, Math.min(place, lines[line].points.length - 1));
    show();
  });
}
addEventListener("scroll", () => { tip.hidden = true; }, {passive: true});

// The first layer: one image for each round, drawn from its counts.
const COLORS = [[157, 217, 59], [94, 201, 98], [53, 183, 121], [32, 157, 137], [37, 132, 142], [48, 105, 142], [62, 74, 137],
  [72, 40, 120], [68, 1, 84]];  // the more, the darker, as in the figure beside it
const blended = part => {
  const at = part * (COLORS.length - 1), first = Math.min(Math.floor(at), COLORS.length - 2);
  return COLORS[first].map((value, which) => Math.round(value + (at - first) * (COLORS[first + 1][which] - value)));
};
for (const layer of document.querySelectorAll(".layer")) {
  const {weight, what, of, shape: [height, width], channels, frames} = JSON.parse(layer.dataset.frames);
  const [slider, select, canvas, scale, text] = ["input", "select", "canvas", ".scale", "output"].map(name => layer.querySelector(name));
  const counts = frames.flatMap(frame => frame.counts).filter(count => count > 0);
  const low = counts.reduce((least, count) => Math.min(least, count), of), high = counts.reduce((most, count) => Math.max(most, count), 1);
  const log = high > 5 * low;
  const part = count => low === high ? 1 : log ? Math.log(count / low) / Math.log(high / low) : (count - low) / (high - low);
  for (const replicate of new Set(frames.map(frame => frame.replicate))) select.append(made("option", `replicate ${replicate}`, {value: replicate}));
  select.hidden = select.options.length < 2;
  scale.querySelector("i").style.background = `linear-gradient(to right, ${COLORS.map(color => `rgb(${color})`).join(", ")})`;
  scale.querySelector("span").textContent = shown(low);
  scale.querySelector("span:nth-of-type(2)").textContent = `${shown(high)} of ${shown(of)} kept${log ? " (log)" : ""}`;
  // A single row of inputs is drawn as bars, of the logarithm if the scale is.
  const tall = height === 1 ? 120 : height;
  const filled = count => height > 1 ? 1 : log ? Math.log1p(count) / Math.log1p(high) : count / high;
  for (const part of scale.querySelectorAll(".none")) part.hidden = height === 1;
  canvas.width = width;
  canvas.height = tall;
  canvas.style.aspectRatio = `${width} / ${height === 1 ? width / 2 : height}`;
  let frame;
  const draw = () => {
    const own = frames.filter(({replicate}) => String(replicate) === select.value);
    slider.max = own.length - 1;
    frame = own[slider.value];
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, width, tall);
    frame.counts.forEach((count, place) => {
      const bar = count || height > 1 ? Math.max(1, Math.round(tall / height * filled(count))) : 0;
      context.fillStyle = count ? `rgb(${blended(part(count))})` : "white";
      context.fillRect(place % width, (Math.floor(place / width) + 1) * tall / height - bar, 1, bar);
    });
    const unread = frame.counts.filter(count => count === 0).length;
    const mean = frame.counts.reduce((sum, count) => sum + count, 0) / frame.counts.length;
    const places = what === "input" ? "inputs" : "places of the kernel";
    text.textContent = `Round ${frame.round}, density ${frame.density}: ${shown(frame.counts.length - unread)} of `
      + `${shown(frame.counts.length)} ${places} are read, each by ${shown(mean)} of ${shown(of)} weights on average.`;
    slider.setAttribute("aria-valuetext", `round ${frame.round}`);
  };
  slider.addEventListener("input", draw);
  select.addEventListener("change", draw);
  canvas.addEventListener("pointermove", event => {
    const box = canvas.getBoundingClientRect();
    const column = Math.min(width - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * width)));
    const row = Math.min(height - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * height)));
    const each = width / channels, channel = Math.floor(column / each);
    const where = height === 1 && channels === 1 ? `${what} ${column}` : `row ${row}, column ${column % each}`;
    const lines = [`${where}${channels > 1 ? `, channel ${channel}` : ""}`, `${shown(frame.counts[row * width + column])} of ${shown(of)} weights kept`];
    tell(lines, "", "", event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  layer.hidden = false;
  layer.querySelector("b").textContent = weight;
  slider.max = slider.value = frames.length;  // the last round
  draw();
}

// On paper everything is open.
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) { details.open = true; details.dataset.shut = ""; }
});
addEventListener("afterprint", () => {
  for (const details of document.querySelectorAll("details[data-shut]")) { details.open = false; delete details.dataset.shut; }
});
