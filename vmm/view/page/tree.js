// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Bytes by stack as a tree, outermost frame first.

import { frameText } from "./format.js";
import { bytesByKey } from "./groups.js";
import { framesOf } from "./recording.js";

export function stackTree(recording, event) {
  const root = node("all stacks", null);
  for (const [stack, bytes] of bytesByKey(recording, "stack", event)) {
    const frames = framesOf(recording, stack);
    root.bytes += bytes;
    let at = root;
    const names = frames.length ? frames.map(frameText).reverse() : ["(no stack)"];
    for (const name of names) {
      if (!at.children.has(name)) at.children.set(name, node(name, at));
      at = at.children.get(name);
      at.bytes += bytes;
    }
  }
  return root;
}

const node = (name, parent) => ({ name, parent, bytes: 0, children: new Map() });

export const childrenOf = (parent) =>
  [...parent.children.values()].sort((a, b) => b.bytes - a.bytes);

export function depthOf(tree) {
  let deepest = 0;
  for (const child of tree.children.values()) deepest = Math.max(deepest, depthOf(child));
  return deepest + 1;
}
