// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Zoom, pan, cursor and keys, the same for every plot over events or time.

import { xValue } from "./columns.js";
import { eventAt, setCursor, showAll, showRange } from "./store.js";

export function interact(canvas, store, plotNow, { hover, leave }) {
  let drag = null;
  const at = (event) => event.clientX - canvas.getBoundingClientRect().left;

  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (sideways) pan(store, (event.deltaX || event.deltaY) / 1000);
      else zoom(store, xValue(store, plotNow(), at(event)), 1.0015 ** event.deltaY);
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { x: at(event), lo: store.lo, hi: store.hi, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    const x = at(event);
    if (drag && (drag.moved || Math.abs(x - drag.x) > 3)) {
      drag.moved = true;
      const plot = plotNow();
      const shift = ((drag.x - x) / (plot.right - plot.left)) * (drag.hi - drag.lo);
      showRange(store, drag.lo + shift, drag.hi + shift);
    }
    hover?.(event, eventAt(store, xValue(store, plotNow(), x)));
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      setCursor(store, eventAt(store, xValue(store, plotNow(), at(event))));
    }
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => leave?.());
  canvas.addEventListener("dblclick", () => showAll(store));
  canvas.addEventListener("keydown", (event) => onKey(event, store));
}

export function onKey(event, store) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const middle = (store.lo + store.hi) / 2;
  const jump = event.shiftKey ? Math.max(1, Math.round(store.recording.n / 100)) : 1;
  const actions = {
    ArrowLeft: () => setCursor(store, store.cursor - jump),
    ArrowRight: () => setCursor(store, store.cursor + jump),
    Home: () => setCursor(store, 0),
    End: () => setCursor(store, store.recording.n - 1),
    "+": () => zoom(store, middle, 0.7),
    "=": () => zoom(store, middle, 0.7),
    "-": () => zoom(store, middle, 1 / 0.7),
    "[": () => pan(store, -0.2),
    "]": () => pan(store, 0.2),
    0: () => showAll(store),
    p: () => setCursor(store, store.recording.peak),
  };
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function zoom(store, x, factor) {
  showRange(store, x - (x - store.lo) * factor, x + (store.hi - x) * factor);
}

function pan(store, part) {
  const shift = (store.hi - store.lo) * part;
  showRange(store, store.lo + shift, store.hi + shift);
}
