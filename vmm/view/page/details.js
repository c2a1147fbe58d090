// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// All that is known of one block, one page, one event.

import { emptyState, factRows, h } from "./dom.js";
import { bothBytes, count, duration, frameText, hex } from "./format.js";
import {
  arenaName,
  eventLabel,
  framesOf,
  streamName,
  tagName,
  timeOf,
  timeText,
} from "./recording.js";
import { blocksOfPage, pagesOfBlock } from "./scene.js";
import { setCursor } from "./store.js";

const MOST_HISTORY = 200;
const MOST_NAMED = 12;

export const PAGE_STATES = {
  used: "in use",
  free: "mapped and free",
  pool: "in the pool, not mapped",
};

// "5: 1, 2, 3, …" for five things of which three are named.
function some(things, name) {
  const named = things.slice(0, MOST_NAMED).map(name).join(", ");
  if (!things.length) return "none";
  return `${count(things.length)}: ${named}${things.length > MOST_NAMED ? ", …" : ""}`;
}

export const eventButton = (store, event) =>
  event < 0 || event >= store.recording.n
    ? h("span", {}, event < 0 ? "before the start" : "not before the end")
    : h(
        "button",
        { type: "button", class: "link", onclick: () => setCursor(store, event) },
        `${eventLabel(store.recording, event)}${timeText(store.recording, event)}`,
      );

export function stackList(recording, stack) {
  const frames = framesOf(recording, stack);
  if (!frames.length) return emptyState("No stack was recorded.");
  return h("ol", { class: "stack" }, ...frames.map((frame) => h("li", {}, frameText(frame))));
}

export function blockDetails(store, row, scene = null) {
  const { recording } = store;
  const { blocks } = recording;
  if (row < 0) return emptyState("Select a block to see what it is.");
  const { death, done, birth } = blocks;
  const arena = arenaName(recording, blocks.addr[row]);
  return h(
    "section",
    { "data-block": row },
    h("h3", {}, blocks.addr[row] ? `Block at ${hex(blocks.addr[row])}` : `Block ${count(row)}`),
    factRows([
      ["size", bothBytes(blocks.size[row])],
      ["requested", bothBytes(blocks.requested[row])],
      ["tag", tagName(recording, blocks.tag[row])],
      ["stream", streamName(recording, blocks.stream[row])],
      ["pool", recording.facts.pools[blocks.pool[row]] || `${blocks.pool[row]}`],
      ...(arena ? [["arena", arena]] : []),
      ...(scene?.pages ? [["pages", some(pagesOfBlock(recording, scene, row), count)]] : []),
      ["thread", `${blocks.thread[row]}`],
      ["allocated", eventButton(store, birth[row])],
      ["freed", eventButton(store, death[row])],
      ...(done[row] !== death[row] ? [["given back", eventButton(store, done[row])]] : []),
      ["lived", lifetime(recording, row)],
    ]),
    h("h4", {}, "Stack"),
    stackList(recording, blocks.stack[row]),
  );
}

export function lifetime(recording, row) {
  const { birth, death } = recording.blocks;
  const span = timeOf(recording, death[row]) - timeOf(recording, birth[row]);
  const least = death[row] >= recording.n ? "at least " : "";
  const time = recording.facts.timed ? `${duration(span)}, ` : "";
  return `${least}${time}${count(death[row] - birth[row])} events`;
}

export function pageDetails(store, scene, number) {
  const { recording } = store;
  const { maps, facts } = recording;
  const page = scene.pages?.get(number);
  const homes = page ? page.homes : [];
  const history = [];
  for (let row = 0; row < maps.page.length; row++) {
    if (maps.page[row] !== number) continue;
    if (maps.birth[row] >= 0) history.push([maps.birth[row], row, "mapped", maps.cause[row]]);
    if (maps.death[row] < recording.n) {
      history.push([maps.death[row], row, "unmapped", maps.end_cause[row]]);
    }
  }
  history.sort((a, b) => a[0] - b[0]);
  const pins = Object.entries(facts.pins[number] || {});
  const inside = blocksOfPage(recording, scene, number);
  return h(
    "section",
    { "data-page": number },
    h("h3", {}, `Page ${count(number)}`),
    factRows([
      ["state", page ? PAGE_STATES[page.state] : "not held"],
      ["homes", homes.length ? h("span", { class: "lines" }, ...homes.map(homeLine)) : "none"],
      ["blocks", some(inside, (block) => tagName(recording, recording.blocks.tag[block]))],
      [
        "pins",
        pins.length
          ? pins.map(([reason, times]) => `${reason} × ${times}`).join(", ")
          : "none known",
      ],
    ]),
    h("h4", {}, `History, ${count(history.length)} events`),
    h(
      "ol",
      { class: "history" },
      ...history
        .slice(-MOST_HISTORY)
        .map(([event, row, what, cause]) =>
          h(
            "li",
            { class: event > scene.event ? "later" : "" },
            eventButton(store, event),
            h(
              "span",
              {},
              ` ${what} at ${hex(maps.addr[row])}`,
              event < facts.start_events ? "" : `, ${facts.causes[cause] || cause}`,
            ),
          ),
        ),
    ),
  );

  function homeLine(row, i) {
    const stale = i < homes.length - 1 ? " (old, waits for its fence)" : "";
    return h("span", {}, `${hex(maps.addr[row])}${stale}`);
  }
}
