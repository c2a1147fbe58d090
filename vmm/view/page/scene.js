// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// The address space at one event, laid out in rows like text; and the owner of each physical page.

import { mappedRanges, takenBlocks } from "./moment.js";

const GAP = 3;
const JOIN_PAGES = 64;
const CREATE = 0;
const SLEEP = 4;

export function makeScene(recording, event) {
  const ranges = mappedRanges(recording, event);
  const taken = takenBlocks(recording, event);
  const scene = { event, ranges, taken, regions: regionsOf(recording, ranges, taken) };
  scene.stretches = stretchesOf(recording, ranges);
  scene.owners = ownersOf(recording, ranges, taken);
  if (recording.facts.has_pages) scene.pages = pagesOf(recording, event, scene);
  return scene;
}

// Stretches of addresses without large holes; each segment of torch is one.
function regionsOf(recording, ranges, taken) {
  const { maps, blocks, facts } = recording;
  const extents = ranges.map((row) => [maps.addr[row], maps.bytes[row], maps.joins[row]]);
  // A file that does not say what is mapped still has the places of its blocks.
  if (!facts.has_ranges)
    for (const row of taken) extents.push([blocks.addr[row], blocks.size[row], 1]);
  const hole = Math.max(facts.page_size, 1 << 20) * JOIN_PAGES;
  const regions = [];
  for (const [address, bytes, joins] of extents) {
    const last = regions.at(-1);
    if (last && joins && last.joins && address - last.end <= hole) {
      last.end = Math.max(last.end, address + bytes);
    } else {
      regions.push({ begin: address, end: address + bytes, joins });
    }
  }
  return regions;
}

// What is mapped without a hole: [address, bytes].
function stretchesOf({ maps }, ranges) {
  const stretches = [];
  for (const row of ranges) {
    const last = stretches.at(-1);
    if (last && last[0] + last[1] === maps.addr[row]) last[1] += maps.bytes[row];
    else stretches.push([maps.addr[row], maps.bytes[row]]);
  }
  return stretches;
}

// For each mapped range the block with most bytes in it, or -1.
function ownersOf({ maps, blocks }, ranges, taken) {
  const owners = new Int32Array(ranges.length).fill(-1);
  let next = 0;
  ranges.forEach((row, i) => {
    const begin = maps.addr[row];
    const end = begin + maps.bytes[row];
    while (next < taken.length && blocks.addr[taken[next]] + blocks.size[taken[next]] <= begin) {
      next++;
    }
    let most = 0;
    for (let k = next; k < taken.length && blocks.addr[taken[k]] < end; k++) {
      const from = Math.max(begin, blocks.addr[taken[k]]);
      const inside = Math.min(end, blocks.addr[taken[k]] + blocks.size[taken[k]]) - from;
      if (inside > most) {
        most = inside;
        owners[i] = taken[k];
      }
    }
  });
  return owners;
}

// Per page number: state none, pool, free or used; the rows of its homes, newest last; its owner.
function pagesOf(recording, event, { ranges, owners }) {
  const { maps } = recording;
  const pages = new Map();
  const lastEnd = new Map();
  for (let row = 0; row < maps.page.length; row++) {
    if (maps.page[row] < 0 || maps.death[row] > event) continue;
    const known = lastEnd.get(maps.page[row]);
    if (known === undefined || maps.death[known] <= maps.death[row])
      lastEnd.set(maps.page[row], row);
  }
  for (const [page, row] of lastEnd) {
    const cause = maps.end_cause[row];
    if (cause !== CREATE && cause !== SLEEP)
      pages.set(page, { state: "pool", homes: [], owner: -1 });
  }
  ranges.forEach((row, i) => {
    const page = maps.page[row];
    if (page < 0) return;
    let found = pages.get(page);
    if (!found || found.state === "pool") {
      found = { state: "free", homes: [], owner: -1 };
      pages.set(page, found);
    }
    found.homes.push(row);
    if (owners[i] >= 0) {
      found.owner = owners[i];
      found.state = "used";
    }
  });
  for (const page of pages.values()) page.homes.sort((a, b) => maps.birth[a] - maps.birth[b]);
  return pages;
}

// The pages that a block of the scene lies on.
export function pagesOfBlock({ maps, blocks }, scene, block) {
  if (!scene.pages || !scene.taken.includes(block)) return [];
  const begin = blocks.addr[block];
  const end = begin + blocks.size[block];
  const inside = (row) => maps.addr[row] < end && maps.addr[row] + maps.bytes[row] > begin;
  return scene.ranges.filter(inside).map((row) => maps.page[row]);
}

// The blocks that lie on a page of the scene, in address order.
export function blocksOfPage({ maps, blocks }, scene, page) {
  const homes = scene.pages?.get(page)?.homes || [];
  const on = (row) => (block) =>
    blocks.addr[block] < maps.addr[row] + maps.bytes[row] &&
    blocks.addr[block] + blocks.size[block] > maps.addr[row];
  return homes.flatMap((row) => scene.taken.filter(on(row)));
}

// Pieces of the regions in rows of `width` pixels: [address, bytes, x, row, pixels].
export function layOut(regions, width, rows) {
  const total = regions.reduce((sum, region) => sum + region.end - region.begin, 0);
  const free = Math.max(width, rows * width - regions.length * GAP - rows);
  const scale = free / Math.max(1, total);
  const pieces = [];
  let x = 0;
  let row = 0;
  for (const region of regions) {
    let address = region.begin;
    while (address < region.end) {
      if (x >= width - 1) {
        x = 0;
        row++;
      }
      const wanted = Math.max(1, (region.end - address) * scale);
      const pixels = Math.min(wanted, width - x);
      const whole = pixels >= wanted - 0.01;
      const bytes = whole ? region.end - address : pixels / scale;
      pieces.push({ address, bytes, x, row, pixels });
      address = whole ? region.end : address + bytes;
      x += pixels;
    }
    x += GAP;
  }
  return { pieces, rows: row + 1 };
}

export function pieceAt(pieces, address) {
  let low = 0;
  let high = pieces.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (pieces[middle].address + pieces[middle].bytes <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Calls draw(x, row, pixels) for each part of [address, address + bytes).
export function eachPart(pieces, address, bytes, draw) {
  const end = address + bytes;
  for (let i = pieceAt(pieces, address); i < pieces.length && pieces[i].address < end; i++) {
    const piece = pieces[i];
    const from = Math.max(address, piece.address);
    const to = Math.min(end, piece.address + piece.bytes);
    if (to <= from) continue;
    const scale = piece.pixels / piece.bytes;
    draw(piece.x + (from - piece.address) * scale, piece.row, (to - from) * scale);
  }
}
