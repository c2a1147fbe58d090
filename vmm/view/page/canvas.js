// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Canvases with sharp pixels that follow the size of their element.

import { color } from "./colors.js";

export const FONT = '12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

export function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, canvas.clientWidth);
  const height = Math.max(1, canvas.clientHeight);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  context.textBaseline = "middle";
  return { context, width, height };
}

export function onResize(canvas, draw) {
  new ResizeObserver(() => canvas.clientWidth && draw()).observe(canvas);
}

// The text, cut with an ellipsis to fit; "" if not even a few letters do.
export function fitText(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low < 3 ? "" : `${text.slice(0, low)}…`;
}

export function verticalLine(context, x, top, bottom, style = color("cursor"), dash = []) {
  context.save();
  context.strokeStyle = style;
  context.lineWidth = 1;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(Math.round(x) + 0.5, top);
  context.lineTo(Math.round(x) + 0.5, bottom);
  context.stroke();
  context.restore();
}

// A line that keeps each value until the next: ys[i] over pixel column i.
export function stepLine(context, left, ys, style, width = 1.5, dash = []) {
  context.save();
  context.strokeStyle = style;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.setLineDash(dash);
  context.beginPath();
  for (let i = 0; i < ys.length; i++) {
    if (!Number.isFinite(ys[i])) continue;
    if (i === 0 || !Number.isFinite(ys[i - 1])) context.moveTo(left + i, ys[i]);
    else if (ys[i] !== ys[i - 1]) context.lineTo(left + i, ys[i - 1]);
    context.lineTo(left + i, ys[i]);
    if (i === ys.length - 1) context.lineTo(left + i + 1, ys[i]);
  }
  context.stroke();
  context.restore();
}

// Diagonal lines to fill with, over whatever color is there.
export function hatching(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color("hatch");
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}
