const VIRIDIS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]];
const LEAST = 11; // pixels of a cell; names of smaller ones are only shown where the pointer is

/** Give the colour of a share from 0 to 1, on a logarithmic scale: viridis, which the colour-blind can read. */
function viridis(share) {
  const at = Math.log1p(100 * share) / Math.log(101) * (VIRIDIS.length - 1);
  const i = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[i].map((low, c) => Math.round(low + (VIRIDIS[i + 1][c] - low) * (at - i)));
}

/** Draw confusion matrices side by side. */
function matrices(box, data) {
  const places = data.panels.map(panel => {
    const place = make("div");
    const figure = make("figure", {}, make("figcaption", {}, panel.title), place);
    return { panel: { ...panel, image: pixels(panel) }, place, figure };
  });
  box.append(make("div", { class: data.panels.length > 2 ? "matrices many" : "matrices" }, ...places.map(({ figure }) => figure)), colourScale());
  return () => places.forEach(({ panel, place }) => place.replaceChildren(matrix(panel, place.clientWidth)));
}

/** Paint a pixel for each cell. */
function pixels(panel) {
  const [rows, columns] = [panel.rows.length, panel.columns.length];
  const canvas = make("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) image.data.set([...viridis(0), 255], 4 * i);
  for (const [row, column, times] of panel.cells) image.data.set(viridis(times / panel.totals[row]), 4 * (row * columns + column));
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function matrix(panel, width) {
  const named = width * 0.75 / Math.max(panel.rows.length, panel.columns.length) >= LEAST;
  const room = named ? Math.min(96, width * 0.28, 10 + Math.max(...[...panel.rows, ...panel.columns].map(widthOf))) : 6;
  const left = room + 20, side = width - left - 2, height = side * panel.rows.length / panel.columns.length;
  const cell = { wide: side / panel.columns.length, tall: height / panel.rows.length };
  const svg = make("svg", { viewBox: `0 0 ${width} ${height + room + 26}`, role: "img", "aria-label": `Confusion matrix: ${panel.title}` });
  svg.append(make("image", { x: left, y: 0, width: side, height, href: panel.image, preserveAspectRatio: "none" }));
  if (named) {
    panel.rows.forEach((name, i) => svg.append(make("text", { x: left - 6, y: (i + 0.5) * cell.tall + 4, "text-anchor": "end" }, shortened(name, room - 8))));
    panel.columns.forEach((name, i) => {
      const [x, y] = [left + (i + 0.5) * cell.wide + 4, height + 6];
      svg.append(make("text", { transform: `translate(${x} ${y}) rotate(-90)`, "text-anchor": "end" }, shortened(name, room - 8)));
    });
  }
  svg.append(make("text", { x: left + side / 2, y: height + room + 22, "text-anchor": "middle" }, "answer"));
  svg.append(make("text", { transform: `translate(11 ${height / 2}) rotate(-90)`, "text-anchor": "middle" }, "class"));
  hoverCells(svg, panel, left, cell, width);
  return svg;
}

function hoverCells(svg, panel, left, cell, width) {
  const mark = make("rect", { class: "cell", width: cell.wide, height: cell.tall, visibility: "hidden" });
  const counts = new Map(panel.cells.map(([row, column, times]) => [row * panel.columns.length + column, times]));
  svg.append(mark);
  svg.onpointermove = event => {
    const frame = svg.getBoundingClientRect(), zoom = width / frame.width;
    const column = Math.floor(((event.clientX - frame.left) * zoom - left) / cell.wide);
    const row = Math.floor((event.clientY - frame.top) * zoom / cell.tall);
    if (!(panel.rows[row] !== undefined && panel.columns[column] !== undefined)) return leave();
    const times = counts.get(row * panel.columns.length + column) || 0, total = panel.totals[row];
    mark.setAttribute("x", left + column * cell.wide);
    mark.setAttribute("y", row * cell.tall);
    mark.setAttribute("visibility", "visible");
    const share = total ? ` (${(100 * times / total).toFixed(1)}%)` : "";
    showTip(event, `class: ${panel.rows[row]}\nanswer: ${panel.columns[column]}\n${times.toLocaleString("en")} of ${total.toLocaleString("en")} images${share}`);
  };
  const leave = () => { mark.setAttribute("visibility", "hidden"); hideTip(); };
  svg.onpointerleave = leave;
}

function colourScale() {
  const svg = make("svg", { viewBox: "0 0 200 26", role: "img", "aria-label": "Colours from 0 to 100 %" });
  for (let i = 0; i < 100; i++) svg.append(make("rect", { x: 6 + i * 1.88, y: 0, width: 2.2, height: 10, fill: `rgb(${viridis(Math.expm1(i / 99 * Math.log(101)) / 100)})` }));
  for (const mark of [0, 1, 5, 20, 100]) svg.append(make("text", { x: 7 + Math.log1p(mark) / Math.log(101) * 187, y: 24, "text-anchor": "middle" }, String(mark)));
  return make("p", { class: "scale" }, svg, "% of the class's images, log scale");
}
