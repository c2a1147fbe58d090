// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// The events behind each column of pixels of a plot.

import { argMax } from "./mips.js";
import { eventAt } from "./store.js";

export function plotOf(width, height, { left, right, top, bottom }) {
  return { left, right: Math.max(left + 1, width - right), top, bottom: height - bottom };
}

// First and last event per column, as [begin[], end[]] with both included.
export function columnEvents(store, width) {
  const columns = Math.max(1, Math.floor(width));
  const begin = new Int32Array(columns);
  const end = new Int32Array(columns);
  const step = (store.hi - store.lo) / columns;
  let next = eventAt(store, store.lo);
  for (let column = 0; column < columns; column++) {
    begin[column] = next;
    next = eventAt(store, store.lo + (column + 1) * step);
    // An event at the border belongs to the column on its right, unless it fills this one.
    end[column] = next > begin[column] && store.axis === "event" ? next - 1 : next;
  }
  return [begin, end];
}

// The event of each column at which a curve is highest.
export function highest(mips, [begin, end]) {
  return begin.map((first, column) => argMax(mips, first, end[column] + 1));
}

export function xPixel(store, plot, x) {
  return plot.left + ((x - store.lo) / (store.hi - store.lo)) * (plot.right - plot.left);
}

export function xValue(store, plot, pixel) {
  const ratio = (pixel - plot.left) / (plot.right - plot.left);
  return store.lo + Math.max(0, Math.min(1, ratio)) * (store.hi - store.lo);
}
