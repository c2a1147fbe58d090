// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Addresses and physical pages at the cursor.

import { blockDetails, pageDetails } from "./details.js";
import { fill, h } from "./dom.js";
import { count, exactBytes, shortBytes } from "./format.js";
import { groupItems, legend } from "./legend.js";
import { pageGrid } from "./page_grid.js";
import { eventLabel } from "./recording.js";
import { makeScene } from "./scene.js";
import { virtualMap } from "./virtual_map.js";

export function mapView(store) {
  let scene = null;
  let shownRecording = null;
  const addresses = virtualMap(store, () => scene);
  const pages = pageGrid(store, () => scene);
  const facts = h("p", { class: "facts" });
  const pageFacts = h("p", { class: "facts" });
  const pageTitle = h("h3", {}, "Physical pages");
  const details = h("div", { class: "details" });
  const key = h("div");
  const maps = h(
    "div",
    {},
    h("h3", {}, "Virtual addresses"),
    facts,
    addresses.canvas,
    pageTitle,
    pageFacts,
    pages.canvas,
    key,
  );
  const panel = h("div", { class: "view split" }, maps, details);

  function refresh() {
    if (scene && scene.event === store.cursor && shownRecording === store.recording) return;
    scene = makeScene(store.recording, store.cursor);
    shownRecording = store.recording;
  }

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
    pageTitle.hidden = pageFacts.hidden = pages.canvas.hidden = !scene.pages;
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
          [
            "muted",
            scene.pages ? "freed, still in use; page with several homes" : "freed, still in use",
            "hatch",
          ],
          ...(pins ? [["pin", "pinned at the end of the file", "dot"]] : []),
        ]),
      );
      fill(
        details,
        store.selectedPage >= 0
          ? pageDetails(store, scene, store.selectedPage)
          : blockDetails(store, store.selectedBlock, scene),
      );
      addresses.draw();
      pages.draw();
    },
  };
}

function placeWord({ facts }, places) {
  const [one, several] =
    facts.kind === "snapshot"
      ? ["segment", "segments"]
      : ["stretch of addresses", "stretches of addresses"];
  return places === 1 ? one : several;
}
