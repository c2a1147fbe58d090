// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// What the list of events says of one event.

import { blockDetails } from "./details.js";
import { emptyState, factRows, h } from "./dom.js";
import { bothBytes, count, duration, exactBytes, hex } from "./format.js";
import { MAP, OPS, UNMAP, eventLabel, streamName, tagName, timeText } from "./recording.js";

export const OF_BLOCK = new Set([..."afcr"].map((letter) => letter.charCodeAt(0)));

export function bytesOf({ op, ref, blocks, maps, others }, e) {
  const row = ref[e];
  if (row < 0) return 0;
  if (op[e] === MAP || op[e] === UNMAP) return maps.bytes[row];
  return OF_BLOCK.has(op[e]) ? blocks.size[row] : others.bytes[row];
}

export function cellsOf(recording, e, letter) {
  const { op, ref, blocks, maps, others, facts } = recording;
  const row = ref[e];
  const ranges = op[e] === MAP || op[e] === UNMAP;
  const table = ranges ? maps : OF_BLOCK.has(op[e]) ? blocks : others;
  const known = row >= 0;
  const place = known && table.addr?.[row] ? hex(table.addr[row]) : "";
  const size = bytesOf(recording, e);
  const bytes = letter === "k" ? duration(size) : size ? count(size) : "";
  let tag = "";
  if (known && ranges && facts.has_pages) tag = `page ${maps.page[row]}`;
  else if (known && table.tag) tag = table.tag[row] ? tagName(recording, table.tag[row]) : "";
  const stream = known && table.stream ? streamName(recording, table.stream[row]) : "";
  return [
    eventLabel(recording, e),
    timeText(recording, e, ""),
    OPS[letter],
    place,
    bytes,
    tag,
    stream,
    count(recording.live[e]),
  ];
}

export function eventDetails(store) {
  const { recording, cursor } = store;
  const { op, ref, maps, facts, others } = recording;
  if (!recording.n) return emptyState("There are no events.");
  const row = ref[cursor];
  const letter = String.fromCharCode(op[cursor]);
  const title = h("h3", {}, `Event ${eventLabel(recording, cursor)}: ${OPS[letter]}`);
  const total = ["live after", exactBytes(recording.live[cursor])];
  if (OF_BLOCK.has(op[cursor])) {
    return h("div", {}, title, factRows([total]), blockDetails(store, row));
  }
  if (op[cursor] === MAP || op[cursor] === UNMAP) {
    const cause = op[cursor] === MAP ? maps.cause[row] : maps.end_cause[row];
    const shown = [
      ["address", hex(maps.addr[row])],
      ["bytes", bothBytes(maps.bytes[row])],
      ...(facts.has_pages
        ? [
            ["page", `${maps.page[row]}`],
            ["cause", facts.causes[cause] || `${cause}`],
          ]
        : []),
      total,
      ["held after", exactBytes(recording.held[cursor])],
    ];
    return h("div", {}, title, factRows(shown));
  }
  const aux = { o: "free on the device", w: "waits for stream" }[letter];
  const shown = [
    ...(others.bytes[row] ? [["bytes", bothBytes(others.bytes[row])]] : []),
    ...(aux
      ? [
          [
            aux,
            letter === "o" ? bothBytes(others.aux[row]) : streamName(recording, others.aux[row]),
          ],
        ]
      : []),
    ["stream", streamName(recording, others.stream[row])],
    ...(others.tag[row] ? [["tag", tagName(recording, others.tag[row])]] : []),
    total,
  ];
  return h("div", {}, title, factRows(shown));
}
