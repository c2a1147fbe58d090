// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Runs of free memory at the cursor, in the ranges that Paddle prints.

import { fill, h } from "./dom.js";
import { bothBytes, count, exactBytes, percent, shortBytes } from "./format.js";
import { RUN_LABELS, freeRuns, mappedRanges, runHistogram, takenBlocks } from "./moment.js";
import { eventLabel } from "./recording.js";

export function runsView(store) {
  const facts = h("p", { class: "facts" });
  const table = h("table", { class: "histogram" });
  const panel = h(
    "div",
    { class: "view" },
    facts,
    table,
    h(
      "p",
      { class: "hint" },
      "A run is memory that is mapped, adjacent and in no block. Bars show bytes.",
    ),
  );

  function render() {
    const { recording, cursor } = store;
    const runs = freeRuns(
      recording,
      mappedRanges(recording, cursor),
      takenBlocks(recording, cursor),
    );
    const { counts, bytes } = runHistogram(runs);
    const total = bytes.reduce((a, b) => a + b, 0);
    const largest = runs.reduce((most, [, size]) => Math.max(most, size), 0);
    fill(
      facts,
      `After event ${eventLabel(recording, cursor)}: `,
      h("b", { id: "runs-count", "data-value": runs.length }, count(runs.length)),
      " free runs, ",
      h("b", { id: "runs-total", "data-value": total }, bothBytes(total)),
      " in all; the largest has ",
      h("b", { id: "runs-largest", "data-value": largest }, bothBytes(largest)),
      total ? `, so ${percent(1 - largest / total)} of it cannot serve one request.` : ".",
    );
    const most = Math.max(1, ...bytes);
    fill(
      table,
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ...["size of the run", "runs", "bytes", ""].map((text) =>
            h("th", { scope: "col" }, text),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        ...RUN_LABELS.map((label, i) =>
          h(
            "tr",
            { "data-count": counts[i], "data-bytes": bytes[i], title: exactBytes(bytes[i]) },
            h("th", { scope: "row" }, label),
            h("td", { class: "number" }, count(counts[i])),
            h("td", { class: "number" }, shortBytes(bytes[i])),
            h(
              "td",
              { class: "bar-cell" },
              h("div", { class: "bar", style: `width:${(100 * bytes[i]) / most}%` }),
            ),
          ),
        ),
      ),
    );
  }

  return {
    name: "runs",
    title: "Free runs",
    panel,
    shown: () => store.recording.facts.has_ranges && store.recording.facts.has_addresses,
    render,
  };
}
