// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// The facts of the file in exact numbers.

import { byId, fill, h } from "./dom.js";
import { count, exactBytes, percent, shortBytes } from "./format.js";
import { markersOf } from "./markers.js";
import { eventLabel } from "./recording.js";

export function tiles(store) {
  return {
    render() {
      const { recording } = store;
      const marks = Object.fromEntries(markersOf(recording).map(([k, e]) => [k, e.length]));
      const { peak, heldPeak, live, held, counts } = recording;
      const shown = [
        tile("peak-live", "Peak live", shortBytes(live[peak]), live[peak], [
          exactBytes(live[peak]),
          `event ${eventLabel(recording, peak)}`,
        ]),
      ];
      if (held) {
        const most = held[heldPeak];
        const frag = most ? 1 - live[peak] / most : 0;
        shown.push(
          tile("peak-held", "Peak held", shortBytes(most), most, [
            exactBytes(most),
            `event ${eventLabel(recording, heldPeak)}`,
          ]),
          tile("peak-frag", "Fragmentation", percent(frag), frag, ["1 − live / held, peaks"]),
        );
      }
      const events = recording.n - recording.facts.start_events;
      shown.push(
        tile("blocks", "Blocks", count(counts.a), counts.a, [
          `${count(counts.f)} freed`,
          `${count(counts.a - counts.f)} live at the end`,
        ]),
        tile("events", "Events", count(events), events, rangeText(recording)),
      );
      if (recording.facts.has_pages) {
        shown.push(
          tile("steals", "Stolen pages", count(marks.steal || 0), marks.steal || 0, [
            `${count(counts.M)} maps`,
            `${count(counts.U)} unmaps`,
          ]),
        );
      }
      if (counts.o) {
        shown.push(tile("ooms", "Out of memory", count(counts.o), counts.o, ["requests refused"]));
      }
      fill(byId("tiles"), ...shown);
    },
  };
}

function rangeText({ facts, n }) {
  const first = facts.first_event;
  const inRange = n - facts.start_events;
  if (!first && inRange >= facts.file_events) return ["the whole file"];
  return [`${count(first)} to ${count(first + inRange - 1)}`, `of ${count(facts.file_events)}`];
}

function tile(id, name, value, exact, below) {
  return h(
    "div",
    { class: "tile", id, "data-value": exact },
    h("span", { class: "tile-name" }, name),
    h("span", { class: "tile-value" }, value),
    ...below.map((text) => h("span", { class: "tile-note" }, text)),
  );
}
