// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Each block as a line from its birth to its death, at the height of its size.

import { BOTTOM, LEFT, RIGHT, TOP, drawXAxis } from "./axes.js";
import { onResize, prepare, verticalLine } from "./canvas.js";
import { color, groupColor } from "./colors.js";
import { plotOf, xPixel } from "./columns.js";
import { blockDetails, lifetime } from "./details.js";
import { fill, h } from "./dom.js";
import { count, exactBytes, shortBytes } from "./format.js";
import { interact } from "./interact.js";
import { groupItems, legend } from "./legend.js";
import { eventLabel, eventNumber, tagName } from "./recording.js";
import { changed, eventAt, xOf } from "./store.js";
import { hideTip, showTip } from "./tooltip.js";

const MOST = 20000;
const NEAR = 6;

export function lifetimeView(store) {
  const canvas = h("canvas", {
    class: "plot tall",
    tabindex: 0,
    role: "img",
    "aria-label":
      "Lifetimes of blocks: each is a line from birth to death at the height of its size",
  });
  const facts = h("p", { class: "facts" });
  const key = h("div");
  const details = h("div", { class: "details" });
  const panel = h("div", { class: "view split" }, h("div", {}, facts, canvas, key), details);
  let plot = plotOf(100, 100, { left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM });
  let drawn = { rows: [], y: () => 0 };

  // The blocks in view that take most pixels: bytes times the part of their life in view.
  function visible() {
    const { recording } = store;
    const { birth, death, size } = recording.blocks;
    const [first, last] = [eventAt(store, store.lo), eventAt(store, store.hi)];
    const rows = [];
    for (let row = 0; row < birth.length && birth[row] <= last; row++) {
      if (death[row] >= first) rows.push(row);
    }
    const total = rows.length;
    if (total <= MOST) return { rows, total };
    const weight = new Float64Array(birth.length);
    for (const row of rows) {
      weight[row] = size[row] * (Math.min(death[row], last) - Math.max(birth[row], first) + 1);
    }
    const limit = Float64Array.from(rows, (row) => weight[row]).sort()[total - MOST];
    return { rows: rows.filter((row) => weight[row] >= limit).slice(0, MOST), total };
  }

  function draw() {
    if (!canvas.clientWidth) return;
    const { recording, groups } = store;
    const { blocks } = recording;
    const { context, width, height } = prepare(canvas);
    plot = plotOf(width, height, { left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM });
    const { rows, total } = visible();
    const [least, most] = sizeBounds(blocks, rows);
    const y = (size) =>
      plot.bottom -
      6 -
      ((plot.bottom - plot.top - 12) * Math.log2(size / least)) / Math.log2(most / least);
    drawSizeAxis(context, plot, least, most, y);
    const x = (event) => xPixel(store, plot, event >= recording.n ? store.hi : xOf(store, event));
    context.save();
    context.beginPath();
    context.rect(plot.left, 0, plot.right - plot.left, plot.bottom);
    context.clip();
    context.globalAlpha = rows.length > 2000 ? 0.55 : 0.85;
    for (const row of rows) {
      const from = x(blocks.birth[row]);
      context.fillStyle = groupColor(groups.colors[groups.of[row]]);
      context.fillRect(
        from,
        y(blocks.size[row]) - 1,
        Math.max(1.5, x(blocks.death[row]) - from),
        2,
      );
    }
    context.restore();
    if (rows.includes(store.selectedBlock)) {
      const row = store.selectedBlock;
      const from = Math.max(plot.left, x(blocks.birth[row]));
      context.strokeStyle = color("select");
      context.strokeRect(
        from - 2,
        y(blocks.size[row]) - 4,
        Math.max(5, x(blocks.death[row]) - from + 4),
        8,
      );
    }
    const shift = store.axis === "event" ? eventNumber(recording, 0) : 0;
    drawXAxis(context, plot, store.lo, store.hi, store.axis, shift);
    const cursor = x(store.cursor);
    if (cursor >= plot.left && cursor <= plot.right)
      verticalLine(context, cursor, plot.top, plot.bottom);
    drawn = { rows, y, x };
    fill(
      facts,
      h("b", { id: "lifetimes", "data-value": rows.length }, count(rows.length)),
      rows.length < total
        ? ` of ${count(total)} blocks in view: those with most bytes times time. Click one.`
        : " blocks in view. Click one.",
    );
  }

  function nearest(event) {
    const rectangle = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - rectangle.left, event.clientY - rectangle.top];
    const { blocks } = store.recording;
    let best = -1;
    let distance = NEAR;
    for (const row of drawn.rows) {
      const off = Math.abs(drawn.y(blocks.size[row]) - py);
      if (off >= distance) continue;
      if (px < drawn.x(blocks.birth[row]) - 2 || px > drawn.x(blocks.death[row]) + 2) continue;
      best = row;
      distance = off;
    }
    return best;
  }

  function hover(event) {
    const row = nearest(event);
    if (row < 0) return hideTip();
    const { recording, groups } = store;
    const { blocks } = recording;
    const ends =
      blocks.death[row] >= recording.n
        ? "not freed"
        : `freed at ${eventLabel(recording, blocks.death[row])}`;
    showTip(event, exactBytes(blocks.size[row]), [
      [tagName(recording, blocks.tag[row]), "", groupColor(groups.colors[groups.of[row]])],
      [`born at ${eventLabel(recording, blocks.birth[row])}`, ends],
      ["lived", lifetime(recording, row)],
    ]);
  }

  interact(canvas, store, () => plot, { hover, leave: hideTip });
  canvas.addEventListener("click", (event) => {
    store.selectedBlock = nearest(event);
    changed(store);
  });
  onResize(canvas, draw);

  return {
    name: "lifetime",
    title: "Lifetimes",
    panel,
    shown: () => store.recording.blocks.size.length > 0,
    render() {
      fill(key, legend(groupItems(store.groups)));
      fill(details, blockDetails(store, store.selectedBlock));
      draw();
    },
  };
}

function sizeBounds({ size }, rows) {
  let least = Infinity;
  let most = 1;
  for (const row of rows) {
    least = Math.min(least, size[row]);
    most = Math.max(most, size[row]);
  }
  if (!rows.length) least = 1;
  return [2 ** Math.floor(Math.log2(least)), 2 ** (Math.floor(Math.log2(most)) + 1)];
}

function drawSizeAxis(context, plot, least, most, y) {
  const labels = Math.max(2, Math.floor((plot.bottom - plot.top) / 32));
  const step = Math.max(1, Math.ceil(Math.log2(most / least) / labels));
  context.textAlign = "right";
  for (let size = least; size <= most; size *= 2 ** step) {
    context.fillStyle = color("grid");
    context.fillRect(plot.left, Math.round(y(size)), plot.right - plot.left, 1);
    context.fillStyle = color("muted");
    context.fillText(shortBytes(size), plot.left - 8, y(size));
  }
}
