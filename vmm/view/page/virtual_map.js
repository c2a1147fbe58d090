// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// The virtual addresses of a scene: blocks, free and unmapped ranges, in rows like text.

import { hatching, onResize, prepare } from "./canvas.js";
import { color, groupColor } from "./colors.js";
import { h } from "./dom.js";
import { exactBytes, hex } from "./format.js";
import { arenaName } from "./recording.js";
import { eachPart, layOut } from "./scene.js";
import { changed } from "./store.js";
import { hideTip, showTip } from "./tooltip.js";

const MAP_ROW = 20;
const BAR = 15;

export function virtualMap(store, sceneNow) {
  const canvas = h("canvas", {
    class: "plot map",
    tabindex: 0,
    role: "img",
    "aria-label": "Virtual addresses. Arrow keys select the block before or after.",
  });
  let layout = { pieces: [], rows: 0 };

  function draw() {
    const scene = sceneNow();
    if (!canvas.clientWidth || !scene) return;
    const { recording, groups } = store;
    const { blocks } = recording;
    const { context, width, height } = prepare(canvas);
    layout = layOut(scene.regions, width, Math.max(1, Math.floor(height / MAP_ROW) - 1));
    const bar =
      (style, inset = 0) =>
      (x, row, pixels) => {
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

  function blockUnder(event) {
    const rectangle = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - rectangle.left, event.clientY - rectangle.top];
    const line = Math.floor(y / MAP_ROW);
    const piece = layout.pieces.find(
      (each) => each.row === line && x >= each.x && x < each.x + each.pixels,
    );
    if (!piece) return null;
    const address = piece.address + ((x - piece.x) / piece.pixels) * piece.bytes;
    const { taken } = sceneNow();
    const { addr, size } = store.recording.blocks;
    const row = taken.find((each) => addr[each] <= address && address < addr[each] + size[each]);
    return { address: Math.floor(address), row: row ?? -1 };
  }

  function selectBlock(row) {
    store.selectedBlock = row;
    store.selectedPage = -1;
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
      [
        groups.labels[group],
        exactBytes(recording.blocks.size[row]),
        groupColor(groups.colors[group]),
      ],
    ]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => selectBlock(blockUnder(event)?.row ?? -1));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const { taken } = sceneNow();
    if (!step || !taken.length) return;
    event.preventDefault();
    const place = taken.indexOf(store.selectedBlock) + step;
    selectBlock(taken[(place + taken.length) % taken.length]);
  });
  onResize(canvas, draw);
  return { canvas, draw };
}
