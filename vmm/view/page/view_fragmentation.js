// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Fragmentation over the range in view: what is live and held, and how much of it cannot be used.

import { BOTTOM, LEFT, RIGHT, TOP, drawByteAxis, drawRatioAxis, drawXAxis } from "./axes.js";
import { onResize, prepare, stepLine, verticalLine } from "./canvas.js";
import { color } from "./colors.js";
import { columnEvents, highest, plotOf, xPixel } from "./columns.js";
import { fill, h } from "./dom.js";
import { count, exactBytes, percent } from "./format.js";
import { interact } from "./interact.js";
import { legend } from "./legend.js";
import { eventLabel, eventNumber, timeText } from "./recording.js";
import { sampleAt, sampleRange } from "./samples.js";
import { eventAt, xOf } from "./store.js";
import { hideTip, showTip } from "./tooltip.js";

const SAMPLES = 240;
const MARGINS = { left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM };

export function fragmentationView(store) {
  const bytes = h("canvas", {
    class: "plot half",
    tabindex: 0,
    role: "img",
    "aria-label": "Bytes live, held and in the largest free run",
  });
  const ratios = h("canvas", {
    class: "plot half",
    tabindex: 0,
    role: "img",
    "aria-label": "Fragmentation ratios",
  });
  const facts = h("p", { class: "facts" });
  const state = h("p", { class: "hint" });
  const key = h("div");
  const ratioKey = h("div");
  const panel = h("div", { class: "view" }, facts, bytes, key, ratios, ratioKey, state);
  let plot = plotOf(100, 100, MARGINS);
  let sampled = { events: [], done: false, id: "" };
  let run = 0;

  function start() {
    const { recording } = store;
    const [first, last] = [eventAt(store, store.lo), eventAt(store, store.hi)];
    const id = `${store.current} ${store.axis} ${first} ${last}`;
    if (id === sampled.id) return;
    sampled = { id, events: [], done: false };
    const mine = ++run;
    const samples = Math.min(SAMPLES, last - first + 1);
    const events = Array.from({ length: samples }, (_, i) =>
      eventAt(store, store.lo + ((i + 1) * (store.hi - store.lo)) / samples),
    );
    const results = sampled.events;
    sampleRange(
      recording,
      events,
      (sample) => results.push(sample),
      () => mine === run,
      () => {
        if (mine !== run) return;
        sampled.done = results.length === events.length;
        draw();
      },
    );
  }

  function draw() {
    if (!bytes.clientWidth) return;
    const { recording } = store;
    const at = (event) => xPixel(store, plot, xOf(store, event));
    const upper = prepare(bytes);
    plot = plotOf(upper.width, upper.height, MARGINS);
    const columns = columnEvents(store, plot.right - plot.left);
    const live = highest(recording.liveMips, columns);
    const held = highest(recording.heldMips, columns);
    const most =
      Math.max(
        1,
        ...Array.from(held, (e) => recording.held[e]),
        ...Array.from(live, (e) => recording.live[e]),
      ) * 1.04;
    drawByteAxis(upper.context, plot, most);
    const toY = (value) => plot.bottom - ((plot.bottom - plot.top) * value) / most;
    const line = (events, values, name, dash) =>
      stepLine(
        upper.context,
        plot.left,
        Array.from(events, (e) => toY(values[e])),
        color(name),
        1.5,
        dash,
      );
    line(held, recording.held, "held", [5, 3]);
    line(live, recording.live, "series-live");
    polyline(
      upper.context,
      sampled.events,
      at,
      (sample) => toY(sample.largest),
      color("series-run"),
    );
    finish(upper.context, at, upper.height);

    const lower = prepare(ratios);
    const lowerPlot = plotOf(lower.width, lower.height, MARGINS);
    const ratioY = (ratio) => lowerPlot.bottom - (lowerPlot.bottom - lowerPlot.top) * ratio;
    plot = lowerPlot;
    drawRatioAxis(lower.context, lowerPlot);
    const series = [
      [(sample) => sample.unused, "series-live", []],
      [(sample) => sample.ext, "series-ext", [6, 3]],
      [(sample) => sample.pin, "series-pin", [2, 3]],
    ];
    for (const [value, name, dash] of series) {
      polyline(lower.context, sampled.events, at, (s) => ratioY(value(s)), color(name), dash);
    }
    finish(lower.context, at, lower.height);
    describe();
  }

  function finish(context, at) {
    const shift = store.axis === "event" ? eventNumber(store.recording, 0) : 0;
    drawXAxis(context, plot, store.lo, store.hi, store.axis, shift);
    const x = at(store.cursor);
    if (x >= plot.left && x <= plot.right) verticalLine(context, x, plot.top, plot.bottom);
  }

  function describe() {
    state.textContent = sampled.done
      ? `The largest run and the ratios are sampled after ${count(sampled.events.length)} events ` +
        "in view; live and held are exact, the highest of each column."
      : `Sampling: ${count(sampled.events.length)} of up to ${SAMPLES} …`;
    const here = sampleAt(store.recording, store.cursor);
    const fact = (id, name, value) =>
      h("span", {}, `${name} `, h("b", { id, "data-value": value }, percent(value)));
    fill(
      facts,
      `After event ${eventLabel(store.recording, store.cursor)}: `,
      fact("frag-unused", "not live", here.unused),
      ", ",
      fact("frag-ext", "free but scattered", here.ext),
      ", ",
      fact("frag-pin", "held by partly used pages", here.pin),
    );
  }

  function hover(event, at) {
    const { recording } = store;
    const sample = sampled.events.findLast((each) => each.event <= at);
    const rows = [
      ["live", exactBytes(recording.live[at])],
      ["held", exactBytes(recording.held[at])],
    ];
    if (sample) {
      rows.push(["largest free run", exactBytes(sample.largest)]);
      rows.push(["not live", percent(sample.unused)]);
      rows.push(["free but scattered", percent(sample.ext)]);
      rows.push(["partly used pages", percent(sample.pin)]);
    }
    showTip(event, `event ${eventLabel(recording, at)}${timeText(recording, at)}`, rows);
  }

  for (const canvas of [bytes, ratios]) {
    interact(canvas, store, () => plot, { hover, leave: hideTip });
    onResize(canvas, draw);
  }

  return {
    name: "fragmentation",
    title: "Fragmentation",
    panel,
    shown: () => store.recording.facts.has_ranges && store.recording.facts.has_addresses,
    render() {
      fill(
        key,
        legend([
          ["series-live", "A: live", "line"],
          ["held", "R: held", "dash"],
          ["series-run", "largest free run", "line"],
        ]),
      );
      fill(
        ratioKey,
        legend([
          ["series-live", "1 − A / R: held but not live", "line"],
          ["series-ext", "F_ext = 1 − largest run / free: free but scattered", "dash"],
          ["series-pin", "F_pin = 1 − A / pages in use: what remapping cannot free", "dots"],
        ]),
      );
      start();
      draw();
    },
  };
}

function polyline(context, samples, toX, toY, style, dash = []) {
  context.save();
  context.strokeStyle = style;
  context.lineWidth = 1.5;
  context.setLineDash(dash);
  context.beginPath();
  samples.forEach((sample, i) => {
    const point = [toX(sample.event), toY(sample)];
    if (i) context.lineTo(...point);
    else context.moveTo(...point);
  });
  context.stroke();
  context.restore();
}
