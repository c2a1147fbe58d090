// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// What the reader of the page has chosen; views draw themselves again when it changes.

import { makeGroups, usefulGroupings } from "./groups.js";

export function makeStore(recordings) {
  const store = {
    recordings,
    current: 0,
    cursor: 0,
    axis: "event",
    lo: 0,
    hi: 1,
    by: "tag",
    selectedBlock: -1,
    selectedPage: -1,
    selectedEvent: -1,
    listeners: [],
    pending: false,
    get recording() {
      return recordings[this.current];
    },
    get groups() {
      const { recording } = this;
      recording.grouped ||= new Map();
      if (!recording.grouped.has(this.by)) {
        recording.grouped.set(this.by, makeGroups(recording, this.by));
      }
      return recording.grouped.get(this.by);
    },
  };
  choose(store, 0);
  return store;
}

export function choose(store, index) {
  store.current = index;
  const { recording } = store;
  const useful = usefulGroupings(recording);
  if (!useful.includes(store.by)) store.by = useful[0];
  if (!recording.facts.timed) store.axis = "event";
  store.cursor = Math.max(0, recording.peak);
  store.selectedBlock = store.selectedPage = store.selectedEvent = -1;
  showAll(store);
}

export function subscribe(store, listener) {
  store.listeners.push(listener);
}

export function changed(store) {
  if (store.pending) return;
  store.pending = true;
  requestAnimationFrame(() => {
    store.pending = false;
    for (const listener of store.listeners) listener();
  });
}

export function setCursor(store, event) {
  store.cursor = Math.max(
    store.recording.first,
    Math.min(store.recording.n - 1, Math.round(event)),
  );
  changed(store);
}

export function axisBounds(store) {
  const { n, t } = store.recording;
  const { first } = store.recording;
  if (store.axis === "event" || !n) return [first, Math.max(first + 1, n)];
  return [t[0], Math.max(t[n - 1], t[0] + 1)];
}

export function showAll(store) {
  [store.lo, store.hi] = axisBounds(store);
  changed(store);
}

// The range [lo, hi], kept inside the axis and not smaller than a few events.
export function showRange(store, lo, hi) {
  const [first, last] = axisBounds(store);
  const width = Math.min(last - first, Math.max(hi - lo, store.axis === "event" ? 4 : 10));
  const start = Math.max(first, Math.min(lo, last - width));
  store.lo = start;
  store.hi = start + width;
  changed(store);
}

export function setAxis(store, axis) {
  const begin = eventAt(store, store.lo);
  const end = eventAt(store, store.hi);
  store.axis = axis;
  showRange(store, xOf(store, begin), xOf(store, end) + (axis === "event" ? 1 : 0));
}

// The event whose outcome stands at a place of the axis.
export function eventAt(store, x) {
  const { n, t } = store.recording;
  if (store.axis === "event") return Math.max(0, Math.min(n - 1, Math.floor(x)));
  let low = 0;
  let high = n;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (t[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

export function xOf(store, event) {
  return store.axis === "event" ? event : store.recording.t[event];
}
