const FEW = 6; // lines; the bands of more would cover each other, and are faint

/** Give a colour, lighter on a dark page. */
const ink = line => `color-mix(in oklab, ${line.colour} var(--keep), white)`;

/** Draw lines with bands; each is named at its end, and a chip shows or hides it, or brings it to the fore. */
function lines(box, data) {
  const hidden = new Set();
  const place = make("div");
  const draw = fore => place.replaceChildren(lineChart(data, data.lines.filter(line => !hidden.has(line)), box.clientWidth, fore));
  if (data.lines.length > 1) box.append(chips(data.lines, hidden, draw));
  box.append(place);
  return draw;
}

function chips(all, hidden, draw) {
  const row = make("div", { class: "chips" });
  const buttons = all.map(line => {
    const swatch = make("svg", { viewBox: "0 0 24 10" }, make("line", { x1: 0, x2: 24, y1: 5, y2: 5, ...stroke(line) }));
    const button = make("button", { type: "button", "aria-pressed": true }, swatch, line.label);
    button.onclick = () => set(line, button, hidden.has(line));
    button.onpointerenter = button.onfocus = () => { if (!hidden.has(line)) draw(line); };
    button.onpointerleave = button.onblur = () => draw();
    return button;
  });
  const set = (line, button, shown) => {
    button.setAttribute("aria-pressed", shown);
    shown ? hidden.delete(line) : hidden.add(line);
    draw();
  };
  row.append(...buttons);
  if (all.length > 3) {
    for (const [label, shown] of [["all", true], ["none", false]]) {
      const button = make("button", { type: "button" }, label);
      button.onclick = () => all.forEach((line, i) => set(line, buttons[i], shown));
      row.append(button);
    }
  }
  return row;
}

function stroke(line) {
  const dash = { "-": "none", "--": "7 4", ":": "2 3", "-.": "8 3 2 3" }[line.dash];
  return { stroke: ink(line), fill: "none", "stroke-width": line.strong ? 3 : 1.8, "stroke-dasharray": dash, "stroke-linejoin": "round" };
}

function lineChart(data, shown, width, fore) {
  const named = data.lines.length > 1;
  const names = named ? Math.min(width * 0.34, Math.max(0, ...shown.map(line => widthOf(line.label) * 1.08)) + 26) : 12;
  const area = { left: 46, right: width - names, top: 30, bottom: Math.max(240, Math.min(400, width * 0.5), 60 + (named ? 15 * shown.length : 0)) };
  const svg = make("svg", { viewBox: `0 0 ${width} ${area.bottom + 46}`, role: "img", "aria-label": `${data.y_label} over ${data.x_label}` });
  const xs = [...new Set(data.lines.flatMap(line => line.x))].sort((a, b) => a - b);
  const scale = { x: across(xs, area), y: upward(data, shown.length ? shown : data.lines, area) };
  axes(svg, data, xs, scale, area);
  const many = shown.length > FEW;
  for (const line of shown.filter(line => line.spread.length)) {
    const seen = line === fore || (!fore && line.strong) ? 0.22 : fore ? 0 : many ? 0.03 : 0.12;
    svg.append(make("path", { class: "band", d: band(line, scale), fill: ink(line), opacity: seen }));
  }
  for (const line of shown) svg.append(make("path", { d: path(line, scale), ...stroke(line), opacity: fore && line !== fore ? 0.2 : 1 }));
  if (xs.length <= 30) shown.filter(line => !fore || line === fore).forEach(line => svg.append(...dots(line, scale)));
  if (named) nameEnds(svg, shown, scale, area, names - 26);
  hover(svg, data, shown, xs, scale, area, width);
  return svg;
}

function across(xs, area) {
  const [low, high] = [xs[0], xs.at(-1)];
  return x => high === low ? (area.left + area.right) / 2 : area.left + 8 + (x - low) / (high - low) * (area.right - area.left - 16);
}

/** Give the vertical scale: of losses logarithmic, else from a round number below all bands to one above. */
function upward(data, shown, area) {
  const edges = shown.flatMap(line => line.y.flatMap((y, i) => [y - (line.spread[i] || 0), y + (line.spread[i] || 0)]));
  const values = data.losses ? edges.filter(y => y > 0) : edges.map(y => Math.min(Math.max(y, 0), 100));
  let low = Math.min(...values), high = Math.max(...values);
  const span = (from, to, f) => y => area.bottom - (f(y) - f(from)) / ((f(to) - f(from)) || 1) * (area.bottom - area.top);
  if (data.losses) {
    [low, high] = [low / 1.15, high * 1.15];
    const powers = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.log10(high); k++) powers.push(...[1, 2, 5].map(factor => factor * 10 ** k));
    return Object.assign(span(low, high, Math.log), { ticks: powers.filter(y => y >= low && y <= high) });
  }
  const step = ticks(low, Math.max(high, low + 1), 6);
  const gap = step.length > 1 ? step[1] - step[0] : 1;
  [low, high] = [Math.max(0, Math.floor(low / gap) * gap), Math.min(100, Math.ceil(high / gap) * gap)];
  if (low === high) low = Math.max(0, high - gap);
  return Object.assign(span(low, high, y => y), { ticks: ticks(low, high, 8) });
}

function axes(svg, data, xs, scale, area) {
  for (const y of scale.y.ticks) {
    svg.append(make("line", { class: "grid", x1: area.left, x2: area.right, y1: scale.y(y), y2: scale.y(y) }));
    svg.append(make("text", { x: area.left - 8, y: scale.y(y) + 4, "text-anchor": "end" }, String(+y.toPrecision(6))));
  }
  const most = Math.max(2, Math.floor((area.right - area.left) / 56));
  const marks = xs.length <= most ? xs : ticks(xs[0], xs.at(-1), most);
  for (const x of marks) svg.append(make("text", { x: scale.x(x), y: area.bottom + 20, "text-anchor": "middle" }, x.toLocaleString("en")));
  svg.append(make("text", { x: (area.left + area.right) / 2, y: area.bottom + 40, "text-anchor": "middle" }, data.x_label));
  svg.append(make("text", { x: 0, y: 12 }, data.y_label));
}

function path(line, scale) {
  return line.y.map((y, i) => `${i ? "L" : "M"}${scale.x(line.x[i]).toFixed(1)} ${scale.y(y).toFixed(1)}`).join("");
}

function band(line, scale) {
  const known = line.y.map((y, i) => [line.x[i], y, line.spread[i]]).filter(([, , std]) => std !== null);
  const point = ([x, y]) => `${scale.x(x).toFixed(1)} ${scale.y(Math.min(Math.max(y, 0), 100)).toFixed(1)}`;
  const upper = known.map(([x, y, std]) => [x, y + std]), lower = known.map(([x, y, std]) => [x, y - std]).reverse();
  return `M${[...upper, ...lower].map(point).join("L")}Z`;
}

function dots(line, scale) {
  return line.y.map((y, i) => make("circle", { cx: scale.x(line.x[i]), cy: scale.y(y), r: line.strong ? 3.6 : 2.6, fill: ink(line) }));
}

function nameEnds(svg, shown, scale, area, room) {
  const ordered = [...shown].sort((a, b) => scale.y(a.y.at(-1)) - scale.y(b.y.at(-1)));
  const places = apart(ordered.map(line => scale.y(line.y.at(-1))), 15, area.top - 12, area.bottom);
  ordered.forEach((line, i) => {
    const from = [scale.x(line.x.at(-1)) + 5, scale.y(line.y.at(-1))];
    svg.append(make("path", { d: `M${from.join(" ")}L${area.right + 16} ${places[i]}`, stroke: ink(line), fill: "none", opacity: 0.6 }));
    const look = { class: `name${line.strong ? " strong" : ""}`, fill: ink(line) };
    svg.append(make("text", { ...look, x: area.right + 20, y: places[i] + 4 }, shortened(line.label, room)));
  });
}

function hover(svg, data, shown, xs, scale, area, width) {
  const guide = make("line", { class: "guide", y1: area.top, y2: area.bottom, visibility: "hidden" });
  svg.append(guide);
  svg.onpointermove = event => {
    const frame = svg.getBoundingClientRect();
    const at = (event.clientX - frame.left) * width / frame.width;
    const x = xs.reduce((best, one) => Math.abs(scale.x(one) - at) < Math.abs(scale.x(best) - at) ? one : best, xs[0]);
    const values = shown.map(line => ({ line, i: line.x.indexOf(x) })).filter(({ i }) => i >= 0).sort((a, b) => b.line.y[b.i] - a.line.y[a.i]);
    if (!values.length) return;
    for (const end of ["x1", "x2"]) guide.setAttribute(end, scale.x(x));
    guide.setAttribute("visibility", "visible");
    const number = y => data.losses ? y.toPrecision(4) : y.toFixed(1);
    const said = values.map(({ line, i }) => `${number(line.y[i])}${line.spread[i] != null ? ` ± ${number(line.spread[i])}` : ""}  ${line.label}`);
    showTip(event, [`${data.x_label} ${x.toLocaleString("en")}`, ...said].join("\n"));
  };
  svg.onpointerleave = () => { guide.setAttribute("visibility", "hidden"); hideTip(); };
}
