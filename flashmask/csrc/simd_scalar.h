// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The pieces that levels without a matching instruction share, in plain C++.
#pragma once

#include <bit>
#include <cstdint>

#include "types.h"

namespace flashmask::FLASHMASK_ISA::scalar {

template <int W>
inline float reduce_add(const float* x) {
  float half[W / 2];
  for (int i = 0; i < W / 2; ++i) half[i] = x[i] + x[i + W / 2];
  if constexpr (W == 2) {
    return half[0];
  } else {
    return reduce_add<W / 2>(half);
  }
}

template <int W>
inline float reduce_max(const float* x) {
  float best = x[0];
  for (int i = 1; i < W; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

inline void transpose16(const uint32_t* src, int64_t src_stride, uint32_t* dst, int64_t dst_stride) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) dst[j * dst_stride + i] = src[i * src_stride + j];
}

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 0x1f, mantissa = h & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact
    const float x = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(x) | sign);
  }
  const uint32_t bits = exponent == 31 ? 0x7f800000u | mantissa << 13 : (exponent + 112) << 23 | mantissa << 13;
  return std::bit_cast<float>(bits | sign);
}

inline uint16_t float_to_half(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f), magnitude = bits & 0x7fffffff;
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23);  // ties to even
  return sign | static_cast<uint16_t>(rounded >> 13);
}

}  // namespace flashmask::FLASHMASK_ISA::scalar
