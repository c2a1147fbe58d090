// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Unpacks the recordings in the page and shows them.

import { decodeColumn, unpack } from "./bytes.js";
import { byId, fill, h, selectBox } from "./dom.js";
import { groupsAt } from "./groups.js";
import { makeRecording } from "./recording.js";
import { choose, makeStore, setCursor, showRange, subscribe } from "./store.js";
import { overview } from "./overview.js";
import { makeTabs } from "./tabs.js";
import { startTheme } from "./theme.js";
import { tiles } from "./tiles.js";
import { diffView } from "./view_diff.js";
import { eventsView } from "./view_events.js";
import { flameView } from "./view_flame.js";
import { fragmentationView } from "./view_fragmentation.js";
import { lifetimeView } from "./view_lifetime.js";
import { mapView } from "./view_map.js";
import { runsView } from "./view_runs.js";
import { timelineView } from "./view_timeline.js";

const VIEWS = [
  timelineView,
  mapView,
  runsView,
  fragmentationView,
  eventsView,
  lifetimeView,
  flameView,
  diffView,
];

async function start() {
  const elements = [...document.querySelectorAll("script.recording")];
  const packed = await Promise.all(elements.map((element) => unpack(element.textContent)));
  for (const element of elements) element.remove();
  const recordings = packed.map(makeRecording);
  const store = makeStore(recordings);
  document.title = `Memory: ${recordings.map((each) => each.facts.name).join(" and ")}`;
  byId("loading").remove();
  if (recordings.every((each) => !each.n)) {
    byId("nothing").hidden = false;
    startTheme(() => {});
    return markReady(store);
  }
  byId("page").hidden = false;
  const parts = [tiles(store), overview(store)];
  const tabs = makeTabs(VIEWS.map((make) => make(store)));
  const render = () => {
    describeFile(store);
    for (const part of parts) part.render();
    tabs.render();
  };
  subscribe(store, render);
  startTheme(render);
  const at = (event) =>
    groupsAt(store.recording, store.groups, event, new Float64Array(store.groups.width));
  markReady({ store, tabs, setCursor, showRange, decodeColumn, groupsAt: at });
}

// After two frames the first full picture is on the screen.
function markReady(view) {
  window.vmmView = view;
  requestAnimationFrame(() =>
    requestAnimationFrame(() => {
      performance.mark("vmm-ready");
      window.__vmmReady = performance.now();
    }),
  );
}

function describeFile(store) {
  const { facts } = store.recording;
  const kinds = {
    recording: "recording of the vmm allocator",
    snapshot: "torch snapshot",
    trace: "trace of requests",
  };
  const files = store.recordings.map((each, i) => [String(i), each.facts.name]);
  fill(
    byId("file"),
    files.length > 1
      ? selectBox("File", files, String(store.current), (value) => choose(store, Number(value)))
      : h("span", { class: "file-name" }, facts.name),
    h("span", { class: "file-kind" }, kinds[facts.kind]),
    facts.source && !facts.source.includes(facts.name)
      ? h("span", { class: "file-kind" }, facts.source)
      : null,
  );
  const missing = [];
  if (!facts.has_addresses)
    missing.push("The file has no addresses, so there is no map and no free runs.");
  else if (!facts.has_ranges)
    missing.push("The file does not say which addresses were mapped, so there are no free runs.");
  if (facts.has_addresses && !facts.has_pages && facts.has_ranges)
    missing.push("The file does not name physical pages.");
  fill(byId("notes"), ...[...missing, ...facts.notes].map((text) => h("li", {}, text)));
  byId("notes").hidden = !missing.length && !facts.notes.length;
}

start().catch((error) => {
  const place = byId("loading") || byId("nothing");
  place.hidden = false;
  place.textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
