// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Where a curve is highest and lowest within any range, from a pyramid of blocks of 16.

const FACTOR = 16;

export function buildMips(values) {
  const high = [];
  const low = [];
  let length = values.length;
  while (length > FACTOR) {
    const above = Math.ceil(length / FACTOR);
    const highs = new Int32Array(above);
    const lows = new Int32Array(above);
    const highBelow = high.at(-1);
    const lowBelow = low.at(-1);
    for (let block = 0; block < above; block++) {
      const end = Math.min(length, (block + 1) * FACTOR);
      let best = highBelow ? highBelow[block * FACTOR] : block * FACTOR;
      let least = lowBelow ? lowBelow[block * FACTOR] : block * FACTOR;
      for (let i = block * FACTOR + 1; i < end; i++) {
        const a = highBelow ? highBelow[i] : i;
        const b = lowBelow ? lowBelow[i] : i;
        if (values[a] > values[best]) best = a;
        if (values[b] < values[least]) least = b;
      }
      highs[block] = best;
      lows[block] = least;
    }
    high.push(highs);
    low.push(lows);
    length = above;
  }
  return { values, high, low };
}

// The first place in [begin, end) with the highest value.
export function argMax(mips, begin, end) {
  return extreme(mips.values, mips.high, begin, end, 1);
}

export function argMin(mips, begin, end) {
  return extreme(mips.values, mips.low, begin, end, -1);
}

function extreme(values, levels, begin, end, sign) {
  let best = begin;
  let i = begin;
  while (i < end) {
    let level = -1;
    let span = 1;
    while (level + 1 < levels.length && i % (span * FACTOR) === 0 && i + span * FACTOR <= end) {
      level++;
      span *= FACTOR;
    }
    const place = level < 0 ? i : levels[level][i / span];
    if (sign * values[place] > sign * values[best]) best = place;
    i += span;
  }
  return best;
}
