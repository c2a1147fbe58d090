// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// What stands at one event: blocks, mappings, runs of free memory.

const M = 1 << 20;
const G = 1 << 30;
export const RUN_BOUNDS = [
  M,
  10 * M,
  50 * M,
  100 * M,
  200 * M,
  400 * M,
  600 * M,
  800 * M,
  G,
  2 * G,
  3 * G,
];
export const RUN_LABELS = [
  "< 1 MiB",
  "1 – 10 MiB",
  "10 – 50 MiB",
  "50 – 100 MiB",
  "100 – 200 MiB",
  "200 – 400 MiB",
  "400 – 600 MiB",
  "600 – 800 MiB",
  "800 MiB – 1 GiB",
  "1 – 2 GiB",
  "2 – 3 GiB",
  "≥ 3 GiB",
];

// Rows whose address is taken, in address order: live, or freed while streams still use them.
export function takenBlocks({ blocks }, event) {
  const { birth, done, addr } = blocks;
  const rows = [];
  for (let row = 0; row < birth.length && birth[row] <= event; row++) {
    if (done[row] > event) rows.push(row);
  }
  return rows.sort((a, b) => addr[a] - addr[b]);
}

export function mappedRanges({ maps }, event) {
  const { birth, death, addr } = maps;
  const rows = [];
  for (let row = 0; row < birth.length; row++) {
    if (birth[row] <= event && death[row] > event && addr[row] > 0) rows.push(row);
  }
  return rows.sort((a, b) => addr[a] - addr[b]);
}

// Maximal ranges that are mapped and in no block: [address, bytes].
export function freeRuns({ maps, blocks }, ranges, taken) {
  const runs = [];
  let begin = 0;
  let run = 0;
  let place = -1;
  let next = 0;
  const close = () => {
    if (run) runs.push([begin, run]);
    run = 0;
  };
  const extend = (from, bytes) => {
    if (!run) begin = from;
    run += bytes;
  };
  for (const row of ranges) {
    const address = maps.addr[row];
    const end = address + maps.bytes[row];
    if (!(maps.joins[row] && address === place)) close();
    place = Math.max(place, address);
    while (next < taken.length && blocks.addr[taken[next]] < end) {
      const from = blocks.addr[taken[next]];
      const to = from + blocks.size[taken[next]];
      if (to > place) {
        if (from > place) extend(place, from - place);
        close();
        place = Math.min(to, end);
      }
      if (to > end) break;
      next++;
    }
    if (end > place) extend(place, end - place);
    place = Math.max(place, end);
  }
  close();
  return runs;
}

export function runHistogram(runs) {
  const counts = new Array(RUN_LABELS.length).fill(0);
  const bytes = new Array(RUN_LABELS.length).fill(0);
  for (const [, size] of runs) {
    let place = 0;
    while (place < RUN_BOUNDS.length && size >= RUN_BOUNDS[place]) place++;
    counts[place]++;
    bytes[place] += size;
  }
  return { counts, bytes };
}

// Bytes of the mapped ranges that some block overlaps.
export function occupiedBytes({ maps, blocks }, ranges, taken) {
  let total = 0;
  let next = 0;
  for (const row of ranges) {
    const begin = maps.addr[row];
    const end = begin + maps.bytes[row];
    while (next < taken.length && blocks.addr[taken[next]] + blocks.size[taken[next]] <= begin) {
      next++;
    }
    if (next < taken.length && blocks.addr[taken[next]] < end) total += maps.bytes[row];
  }
  return total;
}
