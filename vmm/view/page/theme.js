// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Light or dark: as the system says, until the reader chooses.

import { forgetColors } from "./colors.js";
import { byId } from "./dom.js";

export function startTheme(redraw) {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const button = byId("theme");

  function apply() {
    const other = now() === "dark" ? "light" : "dark";
    button.textContent = other === "dark" ? "Dark" : "Light";
    button.setAttribute("aria-label", `Use the ${other} theme`);
    forgetColors();
    redraw();
  }

  button.addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}
