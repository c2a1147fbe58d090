// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Flame graph of live bytes by stack, at the peak or at the cursor.

import { fitText, onResize, prepare } from "./canvas.js";
import { color } from "./colors.js";
import { fill, h, selectBox } from "./dom.js";
import { bothBytes, percent } from "./format.js";
import { eventLabel } from "./recording.js";
import { changed } from "./store.js";
import { hideTip, showTip } from "./tooltip.js";
import { childrenOf, depthOf, stackTree } from "./tree.js";

const FLAME_ROW = 22;
const SHADES = 5;

export function flameView(store) {
  const canvas = h("canvas", {
    class: "plot flame",
    tabindex: 0,
    role: "img",
    "aria-label":
      "Flame graph. Arrow keys go into the largest child, to the parent and to the sides.",
  });
  const tools = h("div", { class: "tools" });
  const facts = h("p", { class: "facts", role: "status" });
  const hint = h(
    "p",
    { class: "hint" },
    "Width is bytes, the outermost frame is on top. Click a frame to fill the width with it, " +
      "the top one to go back. Colors only tell neighbors apart.",
  );
  const panel = h("div", { class: "view" }, tools, facts, canvas, hint);
  let at = "peak";
  let tree = null;
  let of = "";
  let top = null;
  let boxes = [];

  function refresh() {
    const event = at === "peak" ? store.recording.peak : store.cursor;
    const id = `${store.current} ${event}`;
    if (id === of) return;
    of = id;
    tree = top = stackTree(store.recording, event);
  }

  function draw() {
    if (!canvas.clientWidth || !tree) return;
    const above = [];
    for (let node = top.parent; node; node = node.parent) above.unshift(node);
    canvas.style.height = `${(above.length + depthOf(top)) * FLAME_ROW + 4}px`;
    const { context, width } = prepare(canvas);
    boxes = [];
    above.forEach((node, row) => box(context, node, 0, row, width, true));
    lay(context, top, 0, above.length, width);
  }

  function lay(context, node, x, row, width) {
    box(context, node, x, row, width, false);
    let left = x;
    for (const child of childrenOf(node)) {
      const pixels = (width * child.bytes) / Math.max(1, node.bytes);
      if (pixels >= 0.5) lay(context, child, left, row + 1, pixels);
      left += pixels;
    }
  }

  function box(context, node, x, row, width, faded) {
    boxes.push({ node, x, row, width });
    context.globalAlpha = faded ? 0.5 : 1;
    context.fillStyle = color(`flame-${shadeOf(node.name)}`);
    context.fillRect(x, row * FLAME_ROW, Math.max(0.5, width - 1), FLAME_ROW - 1);
    context.globalAlpha = 1;
    if (width < 30) return;
    context.fillStyle = color("flame-text");
    context.textAlign = "left";
    context.fillText(
      fitText(context, node.name, width - 10),
      x + 5,
      row * FLAME_ROW + FLAME_ROW / 2,
    );
  }

  function under(event) {
    const rectangle = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - rectangle.top) / FLAME_ROW);
    const x = event.clientX - rectangle.left;
    return boxes.find((each) => each.row === row && x >= each.x && x < each.x + each.width)?.node;
  }

  function enter(node) {
    if (!node) return;
    top = node;
    changed(store);
  }

  canvas.addEventListener("pointermove", (event) => {
    const node = under(event);
    if (!node) return hideTip();
    showTip(event, node.name, [
      ["bytes", bothBytes(node.bytes)],
      ["of all", percent(node.bytes / Math.max(1, tree.bytes))],
    ]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => enter(under(event)));
  canvas.addEventListener("keydown", (event) => {
    const siblings = top.parent ? childrenOf(top.parent) : [top];
    const place = siblings.indexOf(top);
    const next = {
      ArrowDown: childrenOf(top)[0],
      ArrowUp: top.parent,
      ArrowLeft: siblings[place - 1],
      ArrowRight: siblings[place + 1],
    };
    if (!(event.key in next)) return;
    event.preventDefault();
    enter(next[event.key]);
  });
  onResize(canvas, draw);

  return {
    name: "flame",
    title: "Flame graph",
    panel,
    shown: () => store.recording.facts.frames.length > 0,
    render() {
      refresh();
      const event = at === "peak" ? store.recording.peak : store.cursor;
      fill(
        tools,
        selectBox(
          "Bytes live at",
          [
            ["peak", "the peak"],
            ["cursor", "the cursor"],
          ],
          at,
          (value) => {
            at = value;
            changed(store);
          },
        ),
        h(
          "button",
          { type: "button", disabled: top === tree, onclick: () => enter(tree) },
          "All stacks",
        ),
      );
      fill(
        facts,
        `After event ${eventLabel(store.recording, event)}: `,
        h("b", { id: "flame-bytes", "data-value": top.bytes }, bothBytes(top.bytes)),
        ` in ${top === tree ? "all stacks" : top.name}`,
      );
      draw();
    },
  };
}

function shadeOf(name) {
  let hash = 0;
  for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) >>> 0;
  return hash % SHADES;
}
