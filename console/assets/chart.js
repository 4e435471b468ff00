// A chart of an answer that has a time column and a number: a line, or bars where there are few rows.

import { isNumber } from "./api.js";

const width = 1200;
const height = 220;
const margin = { left: 60, right: 10, top: 10, bottom: 24 };
const chartedRows = 5000;

function mark(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const isTime = (value) => typeof value === "string" && /^\d{4}-\d\d-\d\d/.test(value) && !Number.isNaN(Date.parse(value));

// chart returns a chart of the first number over the first time, null if the answer has none.
export function chart(names, rows) {
  const time = names.find((name) => rows.every((row) => row[name] === null || isTime(row[name])) && rows.some((row) => row[name] !== null));
  const number = names.find((name) => name !== time && rows.every((row) => row[name] === null || isNumber(row[name])) && rows.some((row) => row[name] !== null));
  if (!time || !number || rows.length < 2) return null;
  const points = rows.slice(0, chartedRows).filter((row) => row[time] !== null && row[number] !== null).map((row) => [Date.parse(row[time]), Number(row[number])]).sort((a, b) => a[0] - b[0]);
  const [from, to] = [points[0][0], points.at(-1)[0]];
  if (points.length < 2 || from === to) return null;
  const low = Math.min(0, ...points.map((p) => p[1]));
  const high = Math.max(low + 1e-9, ...points.map((p) => p[1]));
  const x = (at) => margin.left + ((at - from) / (to - from)) * (width - margin.left - margin.right);
  const y = (value) => height - margin.bottom - ((value - low) / (high - low)) * (height - margin.top - margin.bottom);
  const label = `${number} over ${time}: ${points.length} points, from ${low} to ${high}`;
  const svg = mark("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const value of [low, high]) {
    svg.append(mark("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value) }));
    svg.append(mark("text", { x: margin.left - 6, y: y(value) + 4, "text-anchor": "end" }, value.toLocaleString("en", { maximumSignificantDigits: 4 })));
  }
  svg.append(mark("text", { x: margin.left, y: height - 6 }, new Date(from).toISOString().slice(0, 19).replace("T", " ")));
  svg.append(mark("text", { x: width - margin.right, y: height - 6, "text-anchor": "end" }, new Date(to).toISOString().slice(0, 19).replace("T", " ")));
  if (points.length <= 60) {
    const bar = Math.max(2, Math.min(30, (width - margin.left - margin.right) / points.length - 3));
    for (const [at, value] of points) svg.append(mark("rect", { class: "mark", x: Math.min(Math.max(x(at) - bar / 2, margin.left), width - margin.right - bar), y: Math.min(y(value), y(0)), width: bar, height: Math.max(1, Math.abs(y(0) - y(value))) }));
  } else svg.append(mark("polyline", { class: "curve", points: points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
  return svg;
}
