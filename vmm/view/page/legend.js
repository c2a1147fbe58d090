// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// What the colors and the lines of a view mean.

import { h } from "./dom.js";

// Items are [variable of the color, text, kind], kind "area" (default), "line", "dash" or "hatch".
export function legend(items) {
  return h(
    "ul",
    { class: "legend" },
    ...items.map(([name, text, kind = "area"]) =>
      h(
        "li",
        { title: text },
        h("i", { class: `swatch ${kind}`, style: `--swatch:var(--${name})` }),
        h("span", {}, text),
      ),
    ),
  );
}

export const groupItems = (groups) =>
  groups.labels.map((label, i) => [`group-${groups.colors[i]}`, label]);
