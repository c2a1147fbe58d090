// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// The timeline: bytes per group as a stacked area, what is held as a line, marks below.

import { BOTTOM, LEFT, RIGHT, TOP, drawByteAxis, drawXAxis } from "./axes.js";
import { onResize, prepare, stepLine, verticalLine } from "./canvas.js";
import { color, groupColor } from "./colors.js";
import { columnEvents, highest, plotOf, xPixel } from "./columns.js";
import { fill, h, selectBox } from "./dom.js";
import { count, exactBytes } from "./format.js";
import { GROUPINGS, groupsAt, usefulGroupings } from "./groups.js";
import { interact } from "./interact.js";
import { groupItems, legend } from "./legend.js";
import { LANE_HEIGHT, drawMarkers, markersOf } from "./markers.js";
import { eventLabel, eventNumber, timeText } from "./recording.js";
import { changed, eventAt, setAxis, showAll, xOf } from "./store.js";
import { hideTip, showTip } from "./tooltip.js";

export function timelineView(store) {
  const canvas = h("canvas", {
    class: "plot tall",
    tabindex: 0,
    role: "img",
    "aria-label": "Live bytes over the events, stacked by group. Arrow keys move the cursor.",
  });
  const tools = h("div", { class: "tools" });
  const key = h("div");
  const hint = h("p", { class: "hint" });
  const panel = h("div", { class: "view" }, tools, canvas, key, hint);
  let plot = plotOf(100, 100, { left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM });

  function draw() {
    if (!canvas.clientWidth) return;
    const { recording, groups } = store;
    const lanes = markersOf(recording);
    const { context, width, height } = prepare(canvas);
    const below = BOTTOM + lanes.length * LANE_HEIGHT + (lanes.length ? 6 : 0);
    plot = plotOf(width, height, { left: LEFT, right: RIGHT, top: TOP, bottom: below });
    const columns = columnEvents(store, plot.right - plot.left);
    const tops = highest(recording.liveMips, columns);
    const held = recording.held && highest(recording.heldMips, columns);
    const most = highestValue(recording, tops, held) * 1.04 || 1;
    drawByteAxis(context, plot, most);
    const toY = (bytes) => plot.bottom - ((plot.bottom - plot.top) * bytes) / most;
    drawAreas(context, recording, groups, tops, toY);
    if (held) {
      const ys = Array.from(held, (event) => toY(recording.held[event]));
      stepLine(context, plot.left, ys, color("held"), 1.5, [5, 3]);
    }
    const shift = eventNumber(recording, 0);
    drawXAxis(context, plot, store.lo, store.hi, store.axis, store.axis === "event" ? shift : 0);
    const toPixel = (event) => xPixel(store, plot, xOf(store, event));
    const visible = [eventAt(store, store.lo), eventAt(store, store.hi)];
    drawMarkers(context, plot, plot.bottom + BOTTOM + 2, lanes, toPixel, ...visible);
    const bottom = height - 2;
    const peak = toPixel(recording.peak);
    if (peak >= plot.left && peak <= plot.right) {
      verticalLine(context, peak, plot.top, plot.bottom, color("peak"), [2, 3]);
    }
    const cursor = toPixel(store.cursor);
    if (cursor >= plot.left && cursor <= plot.right) {
      verticalLine(context, cursor, plot.top, bottom);
    }
  }

  function drawAreas(context, recording, groups, tops, toY) {
    const now = new Float64Array(groups.width);
    let before = -1;
    for (let column = 0; column < tops.length; column++) {
      if (tops[column] !== before) groupsAt(recording, groups, (before = tops[column]), now);
      let sum = 0;
      for (let group = 0; group < groups.width; group++) {
        if (now[group] <= 0) continue;
        const low = toY(sum);
        sum += now[group];
        const high = toY(sum);
        context.fillStyle = groupColor(groups.colors[group]);
        context.fillRect(plot.left + column, high, 1, low - high);
      }
    }
  }

  function hover(event, at) {
    const { recording, groups } = store;
    const now = groupsAt(recording, groups, at, new Float64Array(groups.width));
    const rows = [["live", exactBytes(recording.live[at])]];
    if (recording.held) rows.push(["held", exactBytes(recording.held[at])]);
    const order = [...groups.labels.keys()].filter((g) => now[g]).sort((a, b) => now[b] - now[a]);
    for (const g of order.slice(0, 9)) {
      rows.push([groups.labels[g], exactBytes(now[g]), groupColor(groups.colors[g])]);
    }
    showTip(event, `event ${eventLabel(recording, at)}${timeText(recording, at)}`, rows);
  }

  interact(canvas, store, () => plot, { hover, leave: hideTip });
  onResize(canvas, draw);

  return {
    name: "timeline",
    title: "Timeline",
    panel,
    shown: () => true,
    render() {
      const { recording, groups } = store;
      fill(
        tools,
        selectBox(
          "Stack by",
          usefulGroupings(recording).map((by) => [by, GROUPINGS[by].title]),
          store.by,
          (by) => {
            store.by = by;
            changed(store);
          },
        ),
        recording.facts.timed &&
          selectBox(
            "Across",
            [
              ["event", "events"],
              ["time", "time"],
            ],
            store.axis,
            (axis) => setAxis(store, axis),
          ),
        h("button", { type: "button", onclick: () => showAll(store) }, "Show all"),
        h(
          "span",
          { class: "hint grow" },
          `${count(eventsInView(store))} events in view. ` +
            "Each column shows its highest moment.",
        ),
      );
      hint.textContent =
        "Wheel zooms, drag moves, click sets the cursor. " +
        "Keys: ← → one event, with Shift 1 %; " +
        "+ − zoom; [ ] move; 0 all; P peak.";
      const lines = recording.held ? [["held", "held by the allocator", "dash"]] : [];
      fill(
        key,
        legend([
          ...groupItems(groups),
          ...lines,
          ["peak", "peak", "dash"],
          ["cursor", "cursor", "line"],
        ]),
      );
      draw();
    },
  };
}

function eventsInView(store) {
  const first = Math.max(eventAt(store, store.lo), store.recording.facts.start_events);
  return Math.max(0, eventAt(store, store.hi) - first + 1);
}

function highestValue(recording, tops, held) {
  let most = 0;
  for (const event of tops) most = Math.max(most, recording.live[event]);
  if (held) for (const event of held) most = Math.max(most, recording.held[event]);
  return most;
}
