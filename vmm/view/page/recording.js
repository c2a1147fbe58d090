// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// A recording: its events, its tables, and what follows from them for every event.

import { duration } from "./format.js";
import { buildMips, argMax } from "./mips.js";

export const OPS = {
  a: "alloc",
  f: "free",
  r: "record stream",
  k: "kernel",
  s: "stream sync",
  m: "step",
  c: "free completed",
  M: "map",
  U: "unmap",
  o: "out of memory",
  w: "wait",
  y: "device sync",
  z: "sleep",
  Z: "wake",
  n: "note",
};

const code = (letter) => letter.charCodeAt(0);
export const A = code("a");
export const F = code("f");
export const MAP = code("M");
export const UNMAP = code("U");
const C = code("c");
const R = code("r");

export function makeRecording({ facts, columns }) {
  const { t_ns: t, op } = columns;
  const n = op.length;
  const blocks = columnsOf(columns, "blocks");
  const maps = columnsOf(columns, "maps");
  const recording = { facts, n, t, op, blocks, maps, others: columnsOf(columns, "others") };
  recording.ref = findRows(recording, columns.ref, columns.early);
  recording.live = liveCurve(recording);
  recording.held = facts.has_ranges ? heldCurve(recording) : null;
  recording.liveMips = buildMips(recording.live);
  recording.heldMips = recording.held && buildMips(recording.held);
  // Of the events that stand for the start only the last one counts: then all of it is there.
  recording.first = Math.max(0, facts.start_events - 1);
  recording.peak = n ? argMax(recording.liveMips, recording.first, n) : -1;
  recording.heldPeak = recording.held && n ? argMax(recording.heldMips, recording.first, n) : -1;
  recording.counts = countOps(op);
  return recording;
}

function columnsOf(columns, table) {
  const found = {};
  for (const name of Object.keys(columns)) {
    if (name.startsWith(`${table}.`)) found[name.slice(table.length + 1)] = columns[name];
  }
  return found;
}

// Row of each event, and from it the birth and the ends of each block.
function findRows({ n, op, blocks }, short, early) {
  const rows = blocks.size.length;
  const birth = new Int32Array(rows);
  const death = new Int32Array(rows).fill(n);
  const done = new Int32Array(rows).fill(-1);
  const ref = new Int32Array(n);
  let allocs = 0;
  let rest = 0;
  for (let e = 0; e < n; e++) {
    const what = op[e];
    if (what === A) {
      birth[allocs] = e;
      ref[e] = allocs++;
    } else if (what === F || what === C || what === R) {
      const row = short[e] ? allocs - short[e] : -1;
      ref[e] = row;
      if (row < 0) continue;
      if (what === F) death[row] = e;
      else if (what === C) done[row] = e;
    } else if (what === MAP || what === UNMAP) {
      ref[e] = short[e];
    } else {
      ref[e] = rest++;
    }
  }
  for (const row of early) death[row] = birth[row];
  for (let row = 0; row < rows; row++) {
    if (done[row] < 0) done[row] = death[row];
  }
  // Freed before the chosen range and not given back within it.
  for (const row of early) if (done[row] === birth[row]) done[row] = n;
  Object.assign(blocks, { birth, death, done });
  return ref;
}

function liveCurve({ n, op, ref, blocks }) {
  const live = new Float64Array(n);
  const { size, birth, death } = blocks;
  let now = 0;
  for (let e = 0; e < n; e++) {
    const row = ref[e];
    if (op[e] === A) {
      if (death[row] !== birth[row]) now += size[row];
    } else if (op[e] === F && row >= 0) {
      now -= size[row];
    }
    live[e] = now;
  }
  return live;
}

function heldCurve({ n, facts, maps }) {
  const held = new Float64Array(n + 1);
  for (let row = 0; row < maps.birth.length; row++) {
    if (maps.birth[row] >= 0) held[maps.birth[row]] += maps.held[row];
    held[maps.death[row]] += maps.released[row];
  }
  let now = facts.held_before;
  for (let e = 0; e < n; e++) {
    now += held[e];
    held[e] = now;
  }
  return held.subarray(0, n);
}

function countOps(op) {
  const all = new Array(256).fill(0);
  for (let e = 0; e < op.length; e++) all[op[e]]++;
  const counts = {};
  for (const letter of Object.keys(OPS)) counts[letter] = all[code(letter)];
  return counts;
}

// The number that an event has in the file; negative for what stood at the start of the range.
export function eventNumber({ facts }, event) {
  return event - facts.start_events + facts.first_event;
}

export function eventLabel(recording, event) {
  if (event < 0) return "start";
  if (event >= recording.n) return "end";
  return event < recording.facts.start_events
    ? "start"
    : eventNumber(recording, event).toLocaleString("en-US");
}

export const timeOf = ({ t, n }, event) => (n ? t[Math.max(0, Math.min(event, n - 1))] : 0);

// " · 1.2 ms" where the file has times.
export const timeText = (recording, event, before = " · ") =>
  recording.facts.timed ? before + duration(timeOf(recording, event)) : "";

export function tagName({ facts }, tag) {
  return facts.tags[tag] || (tag ? `tag ${tag}` : "(no tag)");
}

export function streamName({ facts }, stream) {
  const handle = facts.streams[stream];
  return handle === undefined || handle === String(stream) ? `${stream}` : `${stream} (${handle})`;
}

// The arena that an address lies in, "" if the file does not say.
export function arenaName({ facts }, address) {
  const arena = facts.arenas.find(({ base, bytes }) => base <= address && address < base + bytes);
  return arena ? arena.name : "";
}

export function framesOf({ facts }, stack) {
  return (facts.stacks[stack] || []).map((frame) => facts.frames[frame]);
}
