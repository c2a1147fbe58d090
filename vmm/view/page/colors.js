// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Colors come from the style sheet, so that both themes have their own.

let cached = {};

export function color(name) {
  if (!(name in cached)) {
    const style = getComputedStyle(document.documentElement);
    cached[name] = style.getPropertyValue(`--${name}`).trim();
  }
  return cached[name];
}

export const groupColor = (group) => color(`group-${group}`);

export function forgetColors() {
  cached = {};
}

export const LANES = [
  ["step", "steps"],
  ["steal", "steals"],
  ["wait", "waits"],
  ["sync", "syncs"],
  ["sleep", "sleeps"],
  ["note", "notes"],
  ["oom", "OOM"],
];
