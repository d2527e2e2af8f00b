"use strict";
const SVG = "http://www.w3.org/2000/svg";
const tip = document.getElementById("tip");

/** Make an element with attributes and children; texts are only ever set as text. */
function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "g", "path", "line", "rect", "circle", "text", "image", "stop", "linearGradient", "defs"];
  const element = drawn.includes(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "stroke" || name === "fill") element.style.setProperty(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Show a text beside the pointer, inside the window. */
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${Math.max(4, event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18)}px`;
}
function hideTip() { tip.hidden = true; }

/** Give round numbers from low to high, about `most` of them. */
function ticks(low, high, most) {
  const rough = (high - low || 1) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(wide => wide >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step || 0); // not -0
  return found;
}

/** Move ascending heights as little as possible, until they are a gap apart, within bounds if they fit there. */
function apart(wanted, gap, low, high) {
  const pools = [];
  wanted.forEach((place, i) => {
    let pool = { sum: place - i * gap, size: 1 };
    while (pools.length && pools.at(-1).sum / pools.at(-1).size > pool.sum / pool.size) {
      const before = pools.pop();
      pool = { sum: before.sum + pool.sum, size: before.size + pool.size };
    }
    pools.push(pool);
  });
  const last = Math.max(low, high - (wanted.length - 1) * gap);
  const starts = pools.flatMap(pool => Array(pool.size).fill(Math.min(Math.max(pool.sum / pool.size, low), last)));
  return starts.map((start, i) => start + i * gap);
}

const measuring = document.createElement("canvas").getContext("2d");
function widthOf(text) {
  measuring.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return measuring.measureText(text).width;
}
function shortened(text, width) {
  if (widthOf(text) <= width) return text;
  while (text && widthOf(text + "…") > width) text = text.slice(0, -1);
  return text + "…";
}
