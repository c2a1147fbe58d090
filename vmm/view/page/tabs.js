// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Tabs: one view at a time, arrow keys go from tab to tab.

import { byId, fill, h } from "./dom.js";

export function makeTabs(views) {
  const bar = byId("tabs");
  const main = byId("views");
  let current = views[0];

  for (const view of views) {
    view.panel.id = `view-${view.name}`;
    view.panel.setAttribute("role", "tabpanel");
    view.panel.setAttribute("aria-labelledby", `tab-${view.name}`);
    view.panel.hidden = true;
    view.tab = h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${view.name}`,
        "aria-controls": `view-${view.name}`,
        onclick: () => open(view),
      },
      view.title,
    );
  }
  fill(bar, ...views.map((view) => view.tab));
  fill(main, ...views.map((view) => view.panel));

  bar.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const shown = views.filter((view) => view.shown());
    const next = shown[(shown.indexOf(current) + step + shown.length) % shown.length];
    open(next);
    next.tab.focus();
  });

  function open(view) {
    current = view;
    render();
  }

  function render() {
    if (!current.shown()) current = views[0];
    for (const view of views) {
      view.tab.hidden = !view.shown();
      view.tab.setAttribute("aria-selected", String(view === current));
      view.tab.tabIndex = view === current ? 0 : -1;
      view.panel.hidden = view !== current;
    }
    current.render();
  }

  return { render, open: (name) => open(views.find((view) => view.name === name)) };
}
