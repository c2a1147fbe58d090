// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// The strip above the tabs: the whole file, the range in view, the cursor and what it reads.

import { onResize, prepare, verticalLine } from "./canvas.js";
import { color } from "./colors.js";
import { byId, fill, h } from "./dom.js";
import { bothBytes, count, duration } from "./format.js";
import { onKey } from "./interact.js";
import { argMax } from "./mips.js";
import { OPS, eventLabel, timeOf } from "./recording.js";
import { setCursor, showRange, eventAt, xOf, axisBounds } from "./store.js";

export function overview(store) {
  const canvas = byId("overview");

  const bounds = () => axisBounds(store);
  const toPixel = (x, width) => ((x - bounds()[0]) / (bounds()[1] - bounds()[0])) * width;
  const toX = (pixel) => {
    const [first, last] = bounds();
    return first + Math.max(0, Math.min(1, pixel / canvas.clientWidth)) * (last - first);
  };

  function draw() {
    if (!canvas.clientWidth) return;
    const { recording } = store;
    const { context, width, height } = prepare(canvas);
    const curve = recording.held || recording.live;
    const most = Math.max(recording.live[recording.peak], curve[Math.max(0, recording.heldPeak)]);
    const [first, last] = bounds();
    const step = (last - first) / width;
    for (const [name, values, mips] of [
      ["overview-held", recording.held, recording.heldMips],
      ["overview-live", recording.live, recording.liveMips],
    ]) {
      if (!values) continue;
      context.fillStyle = color(name);
      for (let x = 0; x < width; x++) {
        const begin = eventAt(store, first + x * step);
        const end = Math.max(begin, eventAt(store, first + (x + 1) * step));
        const top = values[argMax(mips, begin, end + 1)] / most;
        context.fillRect(x, height - top * (height - 4), 1, top * (height - 4));
      }
    }
    const [lo, hi] = [toPixel(store.lo, width), toPixel(store.hi, width)];
    context.fillStyle = color("veil");
    context.fillRect(0, 0, lo, height);
    context.fillRect(hi, 0, width - hi, height);
    verticalLine(context, Math.min(width - 1, toPixel(xOf(store, store.cursor), width)), 0, height);
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    drag = { from: event.offsetX, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag || (!drag.moved && Math.abs(event.offsetX - drag.from) < 4)) return;
    drag.moved = true;
    const ends = [toX(drag.from), toX(event.offsetX)].sort((a, b) => a - b);
    showRange(store, ...ends);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) setCursor(store, eventAt(store, toX(event.offsetX)));
    drag = null;
  });
  canvas.addEventListener("keydown", (event) => onKey(event, store));
  onResize(canvas, draw);
  byId("before").addEventListener("click", () => setCursor(store, store.cursor - 1));
  byId("after").addEventListener("click", () => setCursor(store, store.cursor + 1));
  byId("to-peak").addEventListener("click", () => setCursor(store, store.recording.peak));

  return {
    render() {
      draw();
      readout(store);
    },
  };
}

function readout(store) {
  const { recording, cursor } = store;
  const item = (id, name, value, data) =>
    h("span", { id, "data-value": data }, `${name} `, h("b", {}, value));
  const letter = OPS[String.fromCharCode(recording.op[cursor])];
  fill(
    byId("readout"),
    item("cursor-event", "event", `${eventLabel(recording, cursor)} (${letter})`, cursor),
    recording.facts.timed &&
      item("cursor-time", "at", duration(timeOf(recording, cursor)), timeOf(recording, cursor)),
    item("cursor-live", "live", bothBytes(recording.live[cursor]), recording.live[cursor]),
    recording.held &&
      item("cursor-held", "held", bothBytes(recording.held[cursor]), recording.held[cursor]),
  );
  byId("overview").setAttribute(
    "aria-label",
    `Overview of ${count(recording.n)} events; cursor at event ${eventLabel(recording, cursor)}`,
  );
}
