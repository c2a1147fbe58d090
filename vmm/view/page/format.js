// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Numbers as text.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const GROUPED = new Intl.NumberFormat("en-US");

export const count = (value) => GROUPED.format(value);

export const exactBytes = (value) => `${GROUPED.format(value)} B`;

export function shortBytes(value) {
  let unit = 0;
  let scaled = Math.abs(value);
  while (scaled >= 1024 && unit < UNITS.length - 1) {
    scaled /= 1024;
    unit++;
  }
  const digits = unit === 0 || scaled >= 100 || Number.isInteger(scaled) ? 0 : scaled >= 10 ? 1 : 2;
  return `${value < 0 ? "−" : ""}${scaled.toFixed(digits)} ${UNITS[unit]}`;
}

export const bothBytes = (value) =>
  Math.abs(value) < 1024 ? exactBytes(value) : `${shortBytes(value)} (${exactBytes(value)})`;

export const signedBytes = (value) => (value > 0 ? "+" : "") + shortBytes(value);

export const duration = (ns) => durationOf(ns, (value) => value.toPrecision(6));

// Without zeros at the end, for axes.
export const shortDuration = (ns) =>
  durationOf(ns, (value) => String(Number(value.toPrecision(6))));

function durationOf(ns, digits) {
  const size = Math.abs(ns);
  const [scale, unit] =
    size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return scale === 1 ? `${Math.round(ns)} ns` : `${digits(ns / scale)} ${unit}`;
}

export const percent = (ratio) =>
  Number.isFinite(ratio) ? `${(100 * ratio).toFixed(ratio > 0 && ratio < 0.1 ? 2 : 1)} %` : "–";

export const hex = (address) => `0x${address.toString(16)}`;

export function parseAddress(text) {
  const trimmed = text.trim().toLowerCase();
  if (/^0x[0-9a-f]{1,13}$/.test(trimmed)) return Number(trimmed);
  if (/^[0-9]{1,16}$/.test(trimmed)) return Number(trimmed);
  return /^[0-9a-f]{1,13}$/.test(trimmed) ? Number(`0x${trimmed}`) : null;
}

export const frameText = ([file, line, name]) =>
  file ? `${name} — ${file}${line ? `:${line}` : ""}` : name;
