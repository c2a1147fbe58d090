// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Elements, always with their text as text.

export const byId = (id) => document.getElementById(id);

// h("button", {class: "x", onclick: f}, "text", child)
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false || value === null) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(
    ...children.filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(
    ...children.filter((child) => child !== null && child !== undefined && child !== false),
  );
}

export function selectBox(label, options, value, onchange) {
  const select = h(
    "select",
    { onchange: () => onchange(select.value) },
    ...options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)),
  );
  return h("label", { class: "choice" }, h("span", {}, label), select);
}

export const emptyState = (text) => h("p", { class: "empty" }, text);

export function factRows(rows) {
  return h(
    "dl",
    { class: "rows" },
    ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}
