// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
// Packed files (vmm/view/pack.py says what they are made of).

const ARRAYS = { u8: Uint8Array, u16: Uint16Array, i32: Int32Array, f64: Float64Array };

export async function unpack(base64) {
  const packed = fromBase64(base64);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const columns = {};
  for (const column of head.columns) {
    const begin = 4 + length + column.offset;
    columns[column.name] = decodeColumn(column, bytes.subarray(begin, begin + column.bytes));
  }
  return { facts: head.facts, columns };
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

export function decodeColumn(column, bytes) {
  const out = new ARRAYS[column.type](column.count);
  if (column.codec === "same") return out.fill(column.value);
  if (column.codec === "varint") return decodeVarint(bytes, out);
  if (column.codec === "delta") return decodeDelta(bytes, out);
  const wide = column.codec === "u16";
  const table = column.table;
  for (let i = 0; i < out.length; i++) {
    out[i] = table[wide ? bytes[2 * i] | (bytes[2 * i + 1] << 8) : bytes[i]];
  }
  return out;
}

export function decodeVarint(bytes, out) {
  let at = 0;
  for (let i = 0; i < out.length; i++) {
    let byte = bytes[at++];
    let value = byte & 127;
    // Shifts work on 32 bits, sizes and addresses have up to 53.
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = bytes[at++];
      value += (byte & 127) * scale;
    }
    out[i] = value;
  }
  return out;
}

export function decodeDelta(bytes, out) {
  let at = 0;
  let before = 0;
  for (let i = 0; i < out.length; i++) {
    let byte = bytes[at++];
    const negative = byte & 1;
    let half = (byte & 127) >> 1;
    for (let scale = 64; byte > 127; scale *= 128) {
      byte = bytes[at++];
      half += (byte & 127) * scale;
    }
    before += negative ? -half - 1 : half;
    out[i] = before;
  }
  return out;
}
