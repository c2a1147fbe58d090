// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Two files on one axis, and which group grew between their peaks.

import { BOTTOM, LEFT, RIGHT, TOP, drawByteAxis } from "./axes.js";
import { onResize, prepare, stepLine, verticalLine } from "./canvas.js";
import { color } from "./colors.js";
import { plotOf } from "./columns.js";
import { fill, h, selectBox } from "./dom.js";
import { count, exactBytes, percent, shortBytes, shortDuration, signedBytes } from "./format.js";
import { GROUPINGS, bytesByKey, usefulGroupings } from "./groups.js";
import { legend } from "./legend.js";
import { argMax } from "./mips.js";
import { eventLabel, timeText } from "./recording.js";
import { changed } from "./store.js";
import { hideTip, showTip } from "./tooltip.js";

const MOST_ROWS = 100;
const NAMES = ["A", "B"];

export function diffView(store) {
  const canvas = h("canvas", {
    class: "plot",
    tabindex: 0,
    role: "img",
    "aria-label": "Live bytes of both files",
  });
  const tools = h("div", { class: "tools" });
  const key = h("div");
  const summary = h("table", { class: "numbers", id: "diff-summary" });
  const growth = h("table", { class: "numbers", id: "diff-growth" });
  const panel = h(
    "div",
    { class: "view" },
    tools,
    canvas,
    key,
    h("h3", {}, "Peaks"),
    summary,
    h("h3", {}, "Live at the peak, by group"),
    growth,
  );
  let by = "tag";
  let axis = "event";
  let plot = plotOf(100, 100, { left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM });

  // The event of a recording at a part (0 to 1) of the longer one.
  function eventFor(recording, part) {
    const longest = Math.max(...store.recordings.map((each) => lengthOf(each)));
    const place = part * longest;
    if (place > lengthOf(recording)) return -1;
    if (axis === "event") return Math.min(recording.n - 1, Math.floor(place));
    let low = 0;
    let high = recording.n;
    const wanted = recording.t[0] + place;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (recording.t[middle] <= wanted) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  function lengthOf(recording) {
    return axis === "event" ? recording.n : recording.t[recording.n - 1] - recording.t[0];
  }

  function draw() {
    if (!canvas.clientWidth) return;
    const { context, width, height } = prepare(canvas);
    plot = plotOf(width, height, { left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM });
    const most = Math.max(1, ...store.recordings.map((each) => each.live[each.peak])) * 1.04;
    drawByteAxis(context, plot, most);
    const columns = Math.floor(plot.right - plot.left);
    store.recordings.forEach((recording, i) => {
      const ys = Array.from({ length: columns }, (_, column) => {
        const begin = eventFor(recording, column / columns);
        if (begin < 0) return NaN;
        const end = eventFor(recording, (column + 1) / columns);
        const top = argMax(recording.liveMips, begin, Math.max(begin, end) + 1);
        return plot.bottom - ((plot.bottom - plot.top) * recording.live[top]) / most;
      });
      stepLine(context, plot.left, ys, color(`diff-${i}`), 1.75, i ? [6, 3] : []);
    });
    store.recordings.forEach((recording, i) => {
      const longest = Math.max(...store.recordings.map((each) => lengthOf(each)), 1);
      const place =
        axis === "event" ? recording.peak : recording.t[recording.peak] - recording.t[0];
      const x = plot.left + (place / longest) * (plot.right - plot.left);
      verticalLine(context, x, plot.top, plot.bottom, color(`diff-${i}`), [2, 3]);
    });
    context.fillStyle = color("axis");
    context.fillRect(plot.left, plot.bottom, plot.right - plot.left, 1);
    context.fillStyle = color("muted");
    context.textAlign = "left";
    context.fillText("start", plot.left, plot.bottom + 14);
    context.textAlign = "right";
    const longest = Math.max(...store.recordings.map((each) => lengthOf(each)));
    const label = axis === "event" ? `${count(longest)} events` : shortDuration(longest);
    context.fillText(label, plot.right, plot.bottom + 14);
  }

  canvas.addEventListener("pointermove", (event) => {
    const x = event.clientX - canvas.getBoundingClientRect().left;
    const part = Math.max(0, Math.min(1, (x - plot.left) / (plot.right - plot.left)));
    const rows = store.recordings.map((recording, i) => {
      const at = eventFor(recording, part);
      const value = at < 0 ? "ended" : exactBytes(recording.live[at]);
      return [
        `${NAMES[i]} ${at < 0 ? "" : `event ${eventLabel(recording, at)}`}`,
        value,
        color(`diff-${i}`),
      ];
    });
    showTip(event, "live", rows);
  });
  canvas.addEventListener("pointerleave", hideTip);
  onResize(canvas, draw);

  function summarize() {
    const [a, b] = store.recordings;
    const rows = [["peak live", a.live[a.peak], b.live[b.peak], "peak"]];
    if (a.held && b.held) rows.push(["peak held", a.held[a.heldPeak], b.held[b.heldPeak], "held"]);
    rows.push(["live at the end", a.live[a.n - 1], b.live[b.n - 1], "end"]);
    fill(
      summary,
      headRow("", "A", "B", "B − A", "change"),
      h(
        "tbody",
        {},
        ...rows.map(([name, first, second, id]) =>
          numbersRow(name, first, second, { id: `diff-${id}` }),
        ),
        h(
          "tr",
          {},
          h("th", { scope: "row" }, "peak at"),
          ...[a, b].map((each) =>
            h("td", {}, `event ${eventLabel(each, each.peak)}${timeText(each, each.peak, ", ")}`),
          ),
          h("td", {}, ""),
          h("td", {}, ""),
        ),
      ),
    );
  }

  function compareGroups() {
    const [first, second] = store.recordings.map((recording) => byName(recording, by));
    const names = [...new Set([...first.keys(), ...second.keys()])];
    const change = (name) => (second.get(name) || 0) - (first.get(name) || 0);
    names.sort((a, b) => Math.abs(change(b)) - Math.abs(change(a)) || (a < b ? -1 : 1));
    fill(
      growth,
      headRow(GROUPINGS[by].title, "A", "B", "B − A", "change"),
      h(
        "tbody",
        {},
        ...names
          .slice(0, MOST_ROWS)
          .map((name) =>
            numbersRow(name, first.get(name) || 0, second.get(name) || 0, { "data-name": name }),
          ),
      ),
    );
  }

  return {
    name: "diff",
    title: "Compare",
    panel,
    shown: () => store.recordings.length > 1,
    render() {
      const useful = new Set(store.recordings.flatMap(usefulGroupings));
      if (!useful.has(by)) by = "size";
      fill(
        tools,
        selectBox(
          "Group by",
          [...useful].map((each) => [each, GROUPINGS[each].title]),
          by,
          (value) => {
            by = value;
            changed(store);
          },
        ),
        store.recordings.every((each) => each.facts.timed) &&
          selectBox(
            "Across",
            [
              ["event", "events"],
              ["time", "time"],
            ],
            axis,
            (value) => {
              axis = value;
              changed(store);
            },
          ),
      );
      fill(
        key,
        legend(
          store.recordings.map((each, i) => [
            `diff-${i}`,
            `${NAMES[i]}: ${each.facts.name}`,
            i ? "dash" : "line",
          ]),
        ),
      );
      summarize();
      compareGroups();
      draw();
    },
  };
}

// The same tag may have other numbers in the other file, so names are compared.
function byName(recording, by) {
  const totals = new Map();
  for (const [key, bytes] of bytesByKey(recording, by, recording.peak)) {
    const name = GROUPINGS[by].name(recording, key);
    totals.set(name, (totals.get(name) || 0) + bytes);
  }
  return totals;
}

const headRow = (...names) =>
  h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name))));

function numbersRow(name, first, second, attributes) {
  const ratio = first ? (second - first) / first : 0;
  const change = first ? (ratio > 0 ? "+" : "") + percent(ratio) : second ? "new" : "";
  return h(
    "tr",
    { ...attributes, "data-a": first, "data-b": second, "data-change": second - first },
    h("th", { scope: "row", title: name }, name),
    h("td", { title: exactBytes(first) }, shortBytes(first)),
    h("td", { title: exactBytes(second) }, shortBytes(second)),
    h("td", { title: exactBytes(second - first) }, signedBytes(second - first)),
    h("td", {}, change),
  );
}
