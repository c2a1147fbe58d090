// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Measures of fragmentation at chosen events, a few at a time so that the page stays usable.

import { freeRuns, mappedRanges, occupiedBytes, takenBlocks } from "./moment.js";

const SLICE_MS = 24;

export function sampleAt(recording, event) {
  const { blocks, maps } = recording;
  const ranges = mappedRanges(recording, event);
  const taken = takenBlocks(recording, event);
  const runs = freeRuns(recording, ranges, taken);
  const free = runs.reduce((sum, run) => sum + run[1], 0);
  const largest = runs.reduce((most, run) => Math.max(most, run[1]), 0);
  const live = recording.live[event];
  const held = recording.held[event];
  const occupied = occupiedBytes(recording, ranges, taken);
  const inBlocks = taken.reduce((sum, row) => sum + blocks.size[row], 0);
  return {
    event,
    free,
    largest,
    mapped: ranges.reduce((sum, row) => sum + maps.bytes[row], 0),
    unused: held ? Math.max(0, 1 - live / held) : 0,
    ext: free ? 1 - largest / free : 0,
    pin: occupied ? Math.max(0, 1 - inBlocks / occupied) : 0,
  };
}

export async function sampleRange(recording, events, take, wanted, progress) {
  let begin = performance.now();
  for (const event of events) {
    if (!wanted()) return;
    take(sampleAt(recording, event));
    if (performance.now() - begin > SLICE_MS) {
      progress();
      await new Promise((resolve) => setTimeout(resolve));
      begin = performance.now();
    }
  }
  progress();
}
