// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Axes: round numbers, labels that never overlap.

import { color } from "./colors.js";
import { count, shortBytes, shortDuration } from "./format.js";

export const LEFT = 76;
export const RIGHT = 14;
export const BOTTOM = 24;
export const TOP = 10;

export function niceStep(span, most) {
  const raw = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999999);
}

export function byteStep(span, most) {
  return 2 ** Math.ceil(Math.log2(Math.max(1, span / Math.max(1, most))));
}

export function drawByteAxis(context, plot, most) {
  const step = byteStep(most, Math.max(2, Math.floor((plot.bottom - plot.top) / 36)));
  context.save();
  context.textAlign = "right";
  for (let value = 0; value <= most; value += step) {
    const y = plot.bottom - ((plot.bottom - plot.top) * value) / most;
    gridLine(context, plot, y);
    context.fillStyle = color("muted");
    context.fillText(value ? shortBytes(value) : "0", plot.left - 8, y);
  }
  context.restore();
}

export function drawRatioAxis(context, plot) {
  context.save();
  context.textAlign = "right";
  const parts = plot.bottom - plot.top > 150 ? 4 : 2;
  for (let part = 0; part <= parts; part++) {
    const y = plot.bottom - ((plot.bottom - plot.top) * part) / parts;
    gridLine(context, plot, y);
    context.fillStyle = color("muted");
    context.fillText(`${(100 * part) / parts} %`, plot.left - 8, y);
  }
  context.restore();
}

function gridLine(context, plot, y) {
  context.fillStyle = color("grid");
  context.fillRect(plot.left, Math.round(y), plot.right - plot.left, 1);
}

// Event numbers are those of the file: `shift` is what to add.
export function drawXAxis(context, plot, lo, hi, kind, shift = 0) {
  const label = kind === "event" ? (value) => count(Math.round(value + shift)) : shortDuration;
  const width = plot.right - plot.left;
  const step = Math.max(niceStep(hi - lo, Math.max(2, width / 110)), kind === "event" ? 1 : 1e-9);
  context.save();
  context.textAlign = "center";
  let free = -Infinity;
  const first = Math.ceil((lo + shift) / step) * step - shift;
  for (let value = first; value <= hi; value += step) {
    const x = plot.left + ((value - lo) / (hi - lo)) * width;
    const text = label(value);
    const half = context.measureText(text).width / 2;
    context.fillStyle = color("axis");
    context.fillRect(Math.round(x), plot.bottom, 1, 4);
    if (x - half < free || x + half > plot.right + RIGHT || x - half < 0) continue;
    context.fillStyle = color("muted");
    context.fillText(text, x, plot.bottom + 14);
    free = x + half + 12;
  }
  context.fillStyle = color("axis");
  context.fillRect(plot.left, plot.bottom, width, 1);
  context.restore();
}
