// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Events that deserve a mark: steps, steals, waits, syncs, out of memory.

import { LANES, color } from "./colors.js";

const LETTERS = {
  m: "step",
  w: "wait",
  y: "sync",
  s: "sync",
  z: "sleep",
  Z: "sleep",
  n: "note",
  o: "oom",
};
const MAP_CODE = 77;
const MOVE = 2;
const ALIAS = 3;

// Kind -> ascending events, for the kinds that occur.
export function markersOf(recording) {
  if (recording.markers) return recording.markers;
  const kinds = new Map(LANES.map(([kind]) => [kind, []]));
  const { op, ref, maps } = recording;
  for (let e = 0; e < op.length; e++) {
    if (op[e] === MAP_CODE) {
      const cause = maps.cause[ref[e]];
      if (cause === MOVE || cause === ALIAS) kinds.get("steal").push(e);
      continue;
    }
    const kind = LETTERS[String.fromCharCode(op[e])];
    if (kind) kinds.get(kind).push(e);
  }
  recording.markers = [...kinds].filter(([, events]) => events.length);
  return recording.markers;
}

export const isSteal = ({ op, ref, maps }, e) =>
  op[e] === MAP_CODE && (maps.cause[ref[e]] === MOVE || maps.cause[ref[e]] === ALIAS);

export const LANE_HEIGHT = 15;

export function drawMarkers(context, plot, top, lanes, toPixel, lo, hi) {
  const names = new Map(LANES);
  lanes.forEach(([kind, events], lane) => {
    const y = top + lane * LANE_HEIGHT;
    context.fillStyle = color("muted");
    context.textAlign = "right";
    context.fillText(names.get(kind), plot.left - 8, y + LANE_HEIGHT / 2);
    context.fillStyle = color("lane");
    context.fillRect(plot.left, y + 1, plot.right - plot.left, LANE_HEIGHT - 2);
    context.fillStyle = color(`mark-${kind}`);
    let last = -2;
    for (let i = lowerBound(events, lo); i < events.length && events[i] <= hi; i++) {
      const x = Math.round(toPixel(events[i]));
      if (x <= last || x < plot.left || x > plot.right) continue;
      last = x;
      context.fillRect(x, y + 2, kind === "oom" ? 3 : 1.5, LANE_HEIGHT - 4);
    }
  });
}

function lowerBound(values, least) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}
