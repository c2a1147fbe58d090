// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Blocks in groups (by tag, stack, size, stream or pool), and the bytes of each group at any event.

import { A, F, framesOf, streamName, tagName } from "./recording.js";

const MOST_GROUPS = 8;
const STRIDE = 512;
const KIB = 1024;
const MIB = KIB * KIB;
const SIZE_CLASSES = [
  [64 * KIB, "< 64 KiB"],
  [MIB, "64 KiB – 1 MiB"],
  [10 * MIB, "1 – 10 MiB"],
  [50 * MIB, "10 – 50 MiB"],
  [200 * MIB, "50 – 200 MiB"],
  [KIB * MIB, "200 MiB – 1 GiB"],
  [Infinity, "≥ 1 GiB"],
];

export const GROUPINGS = {
  tag: { title: "tag", name: tagName },
  stack: { title: "stack", name: stackName },
  size: { title: "size", name: (_, size) => SIZE_CLASSES[size][1] },
  stream: {
    title: "stream",
    name: (recording, stream) => `stream ${streamName(recording, stream)}`,
  },
  pool: { title: "pool", name: (recording, pool) => recording.facts.pools[pool] || `pool ${pool}` },
};

export function stackName(recording, stack) {
  const frames = framesOf(recording, stack);
  if (!frames.length) return "(no stack)";
  const [file, line, name] = frames[0];
  return file ? `${name} (${file.split("/").pop()}:${line})` : name;
}

// Those that tell blocks apart in this recording; sizes always do.
export function usefulGroupings(recording) {
  return Object.keys(GROUPINGS).filter((by) => by === "size" || varies(recording.blocks[by]));
}

function varies(column) {
  for (let i = 1; i < column.length; i++) if (column[i] !== column[0]) return true;
  return false;
}

export function keysOf(recording, by) {
  if (by !== "size") return recording.blocks[by];
  const { size } = recording.blocks;
  const keys = new Uint8Array(size.length);
  for (let i = 0; i < size.length; i++) {
    let place = 0;
    while (size[i] >= SIZE_CLASSES[place][0]) place++;
    keys[i] = place;
  }
  return keys;
}

// Bytes per key of the blocks that are live after an event.
export function bytesByKey(recording, by, event) {
  const { size, birth, death } = recording.blocks;
  const keys = keysOf(recording, by);
  const totals = new Map();
  for (let row = 0; row < size.length && birth[row] <= event; row++) {
    if (death[row] > event) totals.set(keys[row], (totals.get(keys[row]) || 0) + size[row]);
  }
  return totals;
}

export function makeGroups(recording, by) {
  const keys = keysOf(recording, by);
  const chosen = by === "size" ? SIZE_CLASSES.map((_, i) => i) : largestKeys(recording, by, keys);
  const place = new Map(chosen.map((key, i) => [key, i]));
  const of = new Uint8Array(keys.length);
  let others = false;
  for (let row = 0; row < keys.length; row++) {
    const group = place.get(keys[row]);
    of[row] = group === undefined ? chosen.length : group;
    others ||= group === undefined;
  }
  const labels = chosen.map((key) => GROUPINGS[by].name(recording, key));
  if (others) labels.push("all others");
  const colors = labels.map((_, i) => (i < chosen.length ? i : "other"));
  const groups = { by, keys: chosen, labels, colors, of, width: labels.length };
  groups.checkpoints = checkpoints(recording, groups);
  return groups;
}

// The keys with most bytes at the peak, then those with most bytes in all.
function largestKeys(recording, by, keys) {
  const atPeak = bytesByKey(recording, by, recording.peak);
  const inAll = new Map();
  const { size } = recording.blocks;
  for (let row = 0; row < keys.length; row++) {
    inAll.set(keys[row], (inAll.get(keys[row]) || 0) + size[row]);
  }
  const rank = (key) => atPeak.get(key) || 0;
  const order = [...inAll.keys()].sort(
    (a, b) => rank(b) - rank(a) || inAll.get(b) - inAll.get(a) || a - b,
  );
  return order.slice(0, MOST_GROUPS);
}

function checkpoints(recording, { of, width }) {
  const { n, op, ref, blocks } = recording;
  const { size, birth, death } = blocks;
  const saved = new Float64Array((Math.floor(n / STRIDE) + 1) * width);
  const now = new Float64Array(width);
  for (let e = 0; e < n; e++) {
    if (e % STRIDE === 0) saved.set(now, (e / STRIDE) * width);
    const row = ref[e];
    if (op[e] === A) {
      if (death[row] !== birth[row]) now[of[row]] += size[row];
    } else if (op[e] === F && row >= 0) {
      now[of[row]] -= size[row];
    }
  }
  if (n % STRIDE === 0) saved.set(now, (n / STRIDE) * width);
  return saved;
}

// Bytes of each group after an event, into `out`.
export function groupsAt(recording, groups, event, out) {
  const { op, ref, blocks } = recording;
  const { size, birth, death } = blocks;
  const { of, width } = groups;
  const begin = Math.floor((event + 1) / STRIDE);
  for (let g = 0; g < width; g++) out[g] = groups.checkpoints[begin * width + g];
  for (let e = begin * STRIDE; e <= event; e++) {
    const row = ref[e];
    if (op[e] === A) {
      if (death[row] !== birth[row]) out[of[row]] += size[row];
    } else if (op[e] === F && row >= 0) {
      out[of[row]] -= size[row];
    }
  }
  return out;
}
