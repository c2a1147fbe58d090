// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// One box beside the pointer, inside the window.

import { byId, fill, h } from "./dom.js";

export function showTip(event, title, rows) {
  const tip = byId("tip");
  fill(
    tip,
    h("strong", {}, title),
    ...rows.map(([name, value, color]) =>
      h(
        "div",
        { class: "tip-row" },
        color ? h("i", { class: "swatch", style: `background:${color}` }) : null,
        h("span", {}, name),
        h("b", {}, value),
      ),
    ),
  );
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const room = 14;
  const fitsRight = event.clientX + room + width < window.innerWidth - 4;
  const x = fitsRight ? event.clientX + room : event.clientX - room - width;
  const y = Math.min(event.clientY + room, window.innerHeight - height - 4);
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.max(4, y)}px`;
}

export function hideTip() {
  byId("tip").hidden = true;
}
