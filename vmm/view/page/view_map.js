// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Addresses and physical pages at the cursor.

import { onResize, prepare } from "./canvas.js";
import { color, groupColor } from "./colors.js";
import { PAGE_STATES, blockDetails, pageDetails } from "./details.js";
import { fill, h } from "./dom.js";
import { count, exactBytes, hex, shortBytes } from "./format.js";
import { groupItems, legend } from "./legend.js";
import { arenaName, eventLabel } from "./recording.js";
import { eachPart, layOut, makeScene, pagesOfBlock } from "./scene.js";
import { changed } from "./store.js";
import { hideTip, showTip } from "./tooltip.js";

const MAP_ROW = 20;
const BAR = 15;

export function mapView(store) {
  const canvas = h("canvas", {
    class: "plot map",
    tabindex: 0,
    role: "img",
    "aria-label": "Virtual addresses. Arrow keys select the block before or after.",
  });
  const pageCanvas = h("canvas", {
    class: "plot pages",
    tabindex: 0,
    role: "img",
    "aria-label": "Physical pages. Arrow keys select a page.",
  });
  const facts = h("p", { class: "facts" });
  const pageFacts = h("p", { class: "facts" });
  const pageTitle = h("h3", {}, "Physical pages");
  const details = h("div", { class: "details" });
  const key = h("div");
  const maps = h(
    "div",
    { class: "maps" },
    h("h3", {}, "Virtual addresses"),
    facts,
    canvas,
    pageTitle,
    pageFacts,
    pageCanvas,
    key,
  );
  const panel = h("div", { class: "view split" }, maps, details);
  let scene = null;
  let shownRecording = null;
  let layout = { pieces: [], rows: 0 };
  let grid = { columns: 1, cell: 1, numbers: [] };

  function refresh() {
    if (scene && scene.event === store.cursor && shownRecording === store.recording) return;
    scene = makeScene(store.recording, store.cursor);
    shownRecording = store.recording;
  }

  function drawVirtual() {
    if (!canvas.clientWidth || !scene) return;
    const { recording, groups } = store;
    const { blocks } = recording;
    const { context, width, height } = prepare(canvas);
    layout = layOut(scene.regions, width, Math.max(1, Math.floor(height / MAP_ROW) - 1));
    const bar = (style, inset = 0) => (x, row, pixels) => {
      context.fillStyle = style;
      context.fillRect(x, row * MAP_ROW + 2 + inset, Math.max(pixels, 0.5), BAR - 2 * inset);
    };
    const hatch = hatching(context);
    for (const piece of layout.pieces) bar(color("unmapped"))(piece.x, piece.row, piece.pixels);
    for (const [address, bytes] of scene.stretches) {
      eachPart(layout.pieces, address, bytes, bar(color("free")));
    }
    for (const row of scene.taken) {
      const paint = bar(groupColor(groups.colors[groups.of[row]]));
      eachPart(layout.pieces, blocks.addr[row], blocks.size[row], (x, line, pixels) => {
        paint(x, line, pixels > 3 ? pixels - 0.75 : pixels);
        if (blocks.death[row] <= scene.event) bar(hatch)(x, line, pixels);
      });
    }
    const outline = (x, line, pixels) =>
      context.strokeRect(x, line * MAP_ROW + 1, Math.max(pixels, 2), BAR + 2);
    context.strokeStyle = color("select");
    context.lineWidth = 2;
    if (scene.taken.includes(store.selectedBlock)) {
      const row = store.selectedBlock;
      eachPart(layout.pieces, blocks.addr[row], blocks.size[row], outline);
    }
    for (const row of scene.pages?.get(store.selectedPage)?.homes || []) {
      eachPart(layout.pieces, recording.maps.addr[row], recording.maps.bytes[row], outline);
    }
  }

  function drawPages() {
    if (!pageCanvas.clientWidth || !scene?.pages) return;
    const { recording, groups } = store;
    const { context, width, height } = prepare(pageCanvas);
    const numbers = [...scene.pages.keys()].sort((a, b) => a - b);
    const most = numbers.length ? numbers.at(-1) + 1 : 1;
    let cell = Math.max(3, Math.min(22, Math.floor(Math.sqrt((width * height) / most))));
    while (cell > 3 && Math.ceil(most / Math.floor(width / cell)) * cell > height) cell--;
    grid = { columns: Math.max(1, Math.floor(width / cell)), cell, numbers, most };
    const hatch = hatching(context);
    const inner = cell > 4 ? cell - 1 : cell - 0.5;
    const chosen = new Set(pagesOfBlock(recording, scene, store.selectedBlock));
    for (const [number, page] of scene.pages) {
      const x = (number % grid.columns) * cell;
      const y = Math.floor(number / grid.columns) * cell;
      const styles = {
        used: () => groupColor(groups.colors[groups.of[page.owner]]),
        free: () => color("free"),
        pool: () => color("pool"),
      };
      context.fillStyle = styles[page.state]();
      context.fillRect(x, y, inner, inner);
      if (page.homes.length > 1) {
        context.fillStyle = hatch;
        context.fillRect(x, y, inner, inner);
      }
      if (recording.facts.pins[number] && cell > 6) {
        context.fillStyle = color("pin");
        context.beginPath();
        context.arc(x + inner / 2, y + inner / 2, Math.min(3, cell / 4), 0, 7);
        context.fill();
      }
      if (number === store.selectedPage || chosen.has(number)) {
        context.strokeStyle = color("select");
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, inner - 2, inner - 2);
      }
    }
  }

  function blockUnder(event) {
    const rectangle = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - rectangle.left, event.clientY - rectangle.top];
    const line = Math.floor(y / MAP_ROW);
    const piece = layout.pieces.find(
      (each) => each.row === line && x >= each.x && x < each.x + each.pixels,
    );
    if (!piece) return null;
    const address = piece.address + ((x - piece.x) / piece.pixels) * piece.bytes;
    const { addr, size } = store.recording.blocks;
    const row = scene.taken.find((each) => addr[each] <= address && address < addr[each] + size[each]);
    return { address: Math.floor(address), row: row ?? -1 };
  }

  function pageUnder(event) {
    const { columns, cell } = grid;
    const rectangle = pageCanvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - rectangle.left) / cell);
    const number = Math.floor((event.clientY - rectangle.top) / cell) * columns + column;
    return column < columns && scene.pages?.has(number) ? number : -1;
  }

  function selectBlock(row) {
    store.selectedBlock = row;
    store.selectedPage = -1;
    changed(store);
  }

  function selectPage(number) {
    store.selectedPage = number;
    store.selectedBlock = -1;
    changed(store);
  }

  canvas.addEventListener("pointermove", (event) => {
    const under = blockUnder(event);
    if (!under) return hideTip();
    const { row, address } = under;
    const { groups, recording } = store;
    const arena = arenaName(recording, address);
    const where = arena ? [["arena", arena]] : [];
    if (row < 0) return showTip(event, hex(address), [["free", ""], ...where]);
    const group = groups.of[row];
    showTip(event, hex(recording.blocks.addr[row]), [
      ...where,
      [groups.labels[group], exactBytes(recording.blocks.size[row]), groupColor(groups.colors[group])],
    ]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => selectBlock(blockUnder(event)?.row ?? -1));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !scene.taken.length) return;
    event.preventDefault();
    const place = scene.taken.indexOf(store.selectedBlock) + step;
    selectBlock(scene.taken[(place + scene.taken.length) % scene.taken.length]);
  });
  pageCanvas.addEventListener("pointermove", (event) => {
    const number = pageUnder(event);
    if (number < 0) return hideTip();
    const page = scene.pages.get(number);
    showTip(event, `page ${number}`, [
      [PAGE_STATES[page.state], page.homes.map((row) => hex(store.recording.maps.addr[row])).join(", ")],
    ]);
  });
  pageCanvas.addEventListener("pointerleave", hideTip);
  pageCanvas.addEventListener("click", (event) => selectPage(pageUnder(event)));
  pageCanvas.addEventListener("keydown", (event) => {
    const { columns, numbers } = grid;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (!step || !numbers.length) return;
    event.preventDefault();
    const wanted = store.selectedPage < 0 ? numbers[0] : store.selectedPage + step;
    const ahead = step > 0 ? numbers.find((n) => n >= wanted) : numbers.findLast((n) => n <= wanted);
    if (ahead !== undefined) selectPage(ahead);
  });
  onResize(canvas, drawVirtual);
  onResize(pageCanvas, drawPages);

  function describe() {
    const { recording } = store;
    const { blocks, maps: ranges } = recording;
    const pending = scene.taken.filter((row) => blocks.death[row] <= scene.event).length;
    const bytes = scene.taken.reduce((sum, row) => sum + blocks.size[row], 0);
    const mapped = scene.ranges.reduce((sum, row) => sum + ranges.bytes[row], 0);
    fill(
      facts,
      h("b", { id: "map-blocks", "data-value": scene.taken.length }, count(scene.taken.length)),
      ` blocks after event ${eventLabel(recording, scene.event)}, `,
      h("b", { id: "map-bytes", "data-value": bytes, title: exactBytes(bytes) }, shortBytes(bytes)),
      pending ? ` (${count(pending)} freed but still in use by a stream)` : "",
      recording.facts.has_ranges ? `; ${shortBytes(mapped)} mapped in ` : "; in ",
      `${count(scene.regions.length)} ${placeWord(recording, scene.regions.length)}`,
    );
    pageTitle.hidden = pageFacts.hidden = pageCanvas.hidden = !scene.pages;
    if (scene.pages) {
      const states = { used: 0, free: 0, pool: 0 };
      for (const page of scene.pages.values()) states[page.state]++;
      fill(
        pageFacts,
        h("b", { id: "map-pages", "data-value": scene.pages.size }, count(scene.pages.size)),
        ` pages of ${shortBytes(recording.facts.page_size)}: ${count(states.used)} in use, ` +
          `${count(states.free)} mapped and free, ${count(states.pool)} in the pool. Click one; ` +
          "those of a selected block are outlined.",
      );
    }
  }

  return {
    name: "map",
    title: "Map",
    panel,
    shown: () => store.recording.facts.has_addresses,
    render() {
      refresh();
      describe();
      const pins = Object.keys(store.recording.facts.pins).length;
      fill(
        key,
        legend([
          ...groupItems(store.groups),
          ["free", "mapped and free"],
          ["unmapped", "not mapped"],
          ...(scene.pages ? [["pool", "page in the pool"]] : []),
          ["muted", scene.pages ? "freed, still in use; page with several homes" : "freed, still in use", "hatch"],
          ...(pins ? [["pin", "pinned at the end of the file", "dot"]] : []),
        ]),
      );
      fill(
        details,
        store.selectedPage >= 0
          ? pageDetails(store, scene, store.selectedPage)
          : blockDetails(store, store.selectedBlock, scene),
      );
      drawVirtual();
      drawPages();
    },
  };
}

function placeWord({ facts }, places) {
  const [one, several] = facts.kind === "snapshot" ? ["segment", "segments"] : ["stretch of addresses", "stretches of addresses"];
  return places === 1 ? one : several;
}

function hatching(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color("hatch");
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}
