// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// The list of events: filters work on the columns, text is made only for the rows in sight.

import { fill, h, selectBox } from "./dom.js";
import { OF_BLOCK, bytesOf, cellsOf, eventDetails } from "./event_facts.js";
import { count, parseAddress } from "./format.js";
import { MAP, OPS, UNMAP, eventNumber } from "./recording.js";
import { changed, eventAt, setCursor } from "./store.js";

const ROW_HEIGHT = 24;
// Elements cannot be taller than this in any browser; longer lists scroll in larger steps.
const TALLEST = 12e6;
const HEADS = ["event", "time", "what", "address", "bytes", "tag", "stream", "live after"];

export function eventsView(store) {
  const input = (label, attributes) => {
    const box = h("input", { type: "text", size: 12, oninput: refilter, ...attributes });
    return { box, label: h("label", { class: "choice" }, h("span", {}, label), box) };
  };
  const from = input("From event", { id: "filter-from", inputmode: "numeric" });
  const to = input("to", { id: "filter-to", inputmode: "numeric" });
  const least = input("Bytes ≥", { id: "filter-bytes", inputmode: "numeric" });
  const address = input("Address", { id: "filter-address", placeholder: "0x…", size: 16 });
  const tag = input("Tag contains", { id: "filter-tag" });
  let op = "";
  const ops = h("span", {});
  const found = h("p", { class: "facts", role: "status" });
  const spacer = h("div", { class: "spacer" });
  const body = h("div", { class: "rows-in-sight" });
  const scroller = h(
    "div",
    { class: "event-list", tabindex: 0, role: "grid", "aria-label": "Events", onscroll: drawRows },
    spacer,
    body,
  );
  const head = h("div", { class: "event-row head" }, ...HEADS.map((text) => h("span", {}, text)));
  const details = h("div", { class: "details" });
  const tools = h(
    "div",
    { class: "tools" },
    from.label,
    to.label,
    h("button", { type: "button", onclick: useView }, "Range in view"),
    ops,
    least.label,
    address.label,
    tag.label,
  );
  const list = h("div", { class: "events" }, head, scroller);
  const panel = h(
    "div",
    { class: "view" },
    tools,
    found,
    h("div", { class: "split" }, list, details),
  );
  let rows = null;
  let rowsOf = null;
  let lastCursor = -1;

  function refilter() {
    rows = null;
    lastCursor = store.cursor; // show the first rows found, not those at the cursor
    scroller.scrollTop = 0;
    changed(store);
  }

  function useView() {
    from.box.value = eventNumber(store.recording, eventAt(store, store.lo));
    to.box.value = eventNumber(store.recording, eventAt(store, store.hi));
    refilter();
  }

  function bound(box, otherwise) {
    const { recording } = store;
    const text = box.value.replaceAll(",", "").trim();
    if (!/^-?\d+$/.test(text)) return otherwise;
    const event = Number(text) + recording.facts.start_events - recording.facts.first_event;
    return Math.max(0, Math.min(recording.n - 1, event));
  }

  function filter() {
    const { recording } = store;
    const { n, ref, blocks, maps } = recording;
    const begin = bound(from.box, 0);
    const end = bound(to.box, n - 1);
    const bytes = Number(least.box.value.replaceAll(",", "")) || 0;
    const place = parseAddress(address.box.value);
    const text = tag.box.value.toLowerCase();
    const tags = recording.facts.tags.map((name) => name.toLowerCase().includes(text));
    const code = op ? op.charCodeAt(0) : 0;
    const out = new Uint32Array(Math.max(0, end - begin + 1));
    let length = 0;
    for (let e = begin; e <= end; e++) {
      const what = recording.op[e];
      if (code && what !== code) continue;
      const table = what === MAP || what === UNMAP ? maps : OF_BLOCK.has(what) ? blocks : null;
      const row = ref[e];
      if (bytes && bytesOf(recording, e) < bytes) continue;
      if (place !== null) {
        if (!table || row < 0) continue;
        const size = table === maps ? maps.bytes[row] : blocks.size[row];
        if (place < table.addr[row] || place >= table.addr[row] + size) continue;
      }
      if (text && !(table === blocks && row >= 0 && tags[blocks.tag[row]])) continue;
      out[length++] = e;
    }
    return out.subarray(0, length);
  }

  function drawRows() {
    if (!rows || !scroller.clientHeight) return;
    const { recording } = store;
    const visible = Math.ceil(scroller.clientHeight / ROW_HEIGHT) + 1;
    const first = Math.max(0, Math.min(rows.length - visible + 1, firstInSight()));
    const cutOff = exactScroll() ? scroller.scrollTop % ROW_HEIGHT : 0;
    body.style.transform = `translateY(${scroller.scrollTop - cutOff}px)`;
    const shown = [];
    for (let i = first; i < Math.min(rows.length, first + visible); i++) {
      shown.push(eventRow(recording, rows[i]));
    }
    fill(body, ...shown);
  }

  const exactScroll = () => rows.length * ROW_HEIGHT <= TALLEST;

  function firstInSight() {
    if (exactScroll()) return Math.floor(scroller.scrollTop / ROW_HEIGHT);
    const room = TALLEST - scroller.clientHeight;
    const most = rows.length - Math.floor(scroller.clientHeight / ROW_HEIGHT);
    return Math.round((scroller.scrollTop / room) * most);
  }

  function eventRow(recording, e) {
    const letter = String.fromCharCode(recording.op[e]);
    const cells = cellsOf(recording, e, letter);
    return h(
      "div",
      {
        class: `event-row${e === store.cursor ? " selected" : ""}`,
        "data-event": e,
        role: "row",
        onclick: () => {
          lastCursor = e; // the row is in sight already
          setCursor(store, e);
        },
      },
      ...cells.map((text) => h("span", { role: "gridcell", title: text }, text)),
    );
  }

  function scrollToCursor() {
    if (store.cursor === lastCursor || !rows.length) return;
    lastCursor = store.cursor;
    let low = 0;
    let high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle] < store.cursor) low = middle + 1;
      else high = middle;
    }
    const above = Math.max(0, low - Math.floor(scroller.clientHeight / ROW_HEIGHT / 2));
    if (exactScroll()) scroller.scrollTop = above * ROW_HEIGHT;
    else scroller.scrollTop = (above / rows.length) * (TALLEST - scroller.clientHeight);
  }

  scroller.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const place = rows.indexOf(store.cursor);
    const next = place < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, place + step));
    setCursor(store, rows[next]);
  });
  new ResizeObserver(drawRows).observe(scroller);

  return {
    name: "events",
    title: "Events",
    panel,
    shown: () => true,
    render() {
      const { recording } = store;
      if (rowsOf !== recording) {
        rows = null;
        rowsOf = recording;
        const known = Object.keys(OPS).filter((letter) => recording.counts[letter]);
        fill(
          ops,
          selectBox(
            "Kind",
            [["", "all"], ...known.map((letter) => [letter, OPS[letter]])],
            op,
            (value) => {
              op = value;
              refilter();
            },
          ),
        );
        address.label.hidden = !recording.facts.has_addresses;
      }
      rows ||= filter();
      fill(
        found,
        h("b", { id: "events-found", "data-value": rows.length }, count(rows.length)),
        ` of ${count(recording.n)} rows`,
        recording.facts.start_events
          ? `, ${count(recording.facts.start_events)} of them for what was there at the start`
          : "",
      );
      spacer.style.height = `${Math.min(TALLEST, rows.length * ROW_HEIGHT)}px`;
      scrollToCursor();
      drawRows();
      fill(details, eventDetails(store));
    },
  };
}
