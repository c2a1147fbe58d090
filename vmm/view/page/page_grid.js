// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// The physical pages of a scene as a grid in the order of their numbers.

import { hatching, onResize, prepare } from "./canvas.js";
import { color, groupColor } from "./colors.js";
import { PAGE_STATES } from "./details.js";
import { h } from "./dom.js";
import { hex } from "./format.js";
import { pagesOfBlock } from "./scene.js";
import { changed } from "./store.js";
import { hideTip, showTip } from "./tooltip.js";

const SMALLEST = 3;
const LARGEST = 22;
// What the grid fills unless there are more pages than fit.
const AREA_HEIGHT = 280;

export function pageGrid(store, sceneNow) {
  const canvas = h("canvas", {
    class: "plot pages",
    tabindex: 0,
    role: "img",
    "aria-label": "Physical pages. Arrow keys select a page.",
  });
  let grid = { columns: 1, cell: 1, numbers: [] };

  function draw() {
    const scene = sceneNow();
    if (!canvas.clientWidth || !scene?.pages) return;
    const { recording, groups } = store;
    const numbers = [...scene.pages.keys()].sort((a, b) => a - b);
    const most = numbers.length ? numbers.at(-1) + 1 : 1;
    const width = canvas.clientWidth;
    const rowsOf = (cell) => Math.ceil(most / Math.max(1, Math.floor(width / cell)));
    let cell = LARGEST;
    while (cell > SMALLEST && rowsOf(cell) * cell > AREA_HEIGHT) cell--;
    grid = { columns: Math.max(1, Math.floor(width / cell)), cell, numbers };
    canvas.style.height = `${rowsOf(cell) * cell + 2}px`;
    const { context } = prepare(canvas);
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

  function pageUnder(event) {
    const { columns, cell } = grid;
    const rectangle = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - rectangle.left) / cell);
    const number = Math.floor((event.clientY - rectangle.top) / cell) * columns + column;
    return column < columns && sceneNow()?.pages?.has(number) ? number : -1;
  }

  function selectPage(number) {
    store.selectedPage = number;
    store.selectedBlock = -1;
    changed(store);
  }

  canvas.addEventListener("pointermove", (event) => {
    const number = pageUnder(event);
    if (number < 0) return hideTip();
    const page = sceneNow().pages.get(number);
    showTip(event, `page ${number}`, [
      [
        PAGE_STATES[page.state],
        page.homes.map((row) => hex(store.recording.maps.addr[row])).join(", "),
      ],
    ]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => selectPage(pageUnder(event)));
  canvas.addEventListener("keydown", (event) => {
    const { columns, numbers } = grid;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (!step || !numbers.length) return;
    event.preventDefault();
    const wanted = store.selectedPage < 0 ? numbers[0] : store.selectedPage + step;
    const ahead =
      step > 0 ? numbers.find((n) => n >= wanted) : numbers.findLast((n) => n <= wanted);
    if (ahead !== undefined) selectPage(ahead);
  });
  onResize(canvas, draw);
  return { canvas, draw };
}
