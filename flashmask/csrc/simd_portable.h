// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Four-lane arithmetic in the compiler's vector extension: SSE2 on x86-64, NEON on Arm, plain code elsewhere.
// See simd_avx512.h for the meaning of each function.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd_scalar.h"

namespace flashmask::FLASHMASK_ISA {

struct Simd {
  typedef float V __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  static constexpr int W = 4;
  static constexpr int kRows = 4, kVecs = 2, kRowsT = 4, kVecsT = 2;

  static V zero() { return V{}; }
  static V set1(float x) { return V{x, x, x, x}; }
  static V load(const float* p) {
    V x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, V x) { std::memcpy(p, &x, sizeof x); }
  static V load_words(const uint32_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static V broadcast_word(const uint32_t* p) {
    float x;
    std::memcpy(&x, p, sizeof x);
    return set1(x);
  }
  static V add(V a, V b) { return a + b; }
  static V sub(V a, V b) { return a - b; }
  static V mul(V a, V b) { return a * b; }
  static V fma(V a, V b, V c) { return a * b + c; }
  static V max(V a, V b) { return a > b ? a : b; }
  static float reduce_add(V a) { return scalar::reduce_add<W>(reinterpret_cast<const float*>(&a)); }
  static float reduce_max(V a) { return scalar::reduce_max<W>(reinterpret_cast<const float*>(&a)); }
  static bool any_greater(V a, V b) {
    const I m = a > b;
    return (m[0] | m[1] | m[2] | m[3]) != 0;
  }

  // Below 2^-126 the result is flushed to zero, and so is -inf; NaN stays NaN.
  static V floor_clamped(V x) {
    V y = x;
    for (int i = 0; i < W; ++i) y[i] = std::floor(x[i] < -127.0f ? -127.0f : x[i]);
    return y;
  }
  static V fraction(V x) { return (x < set1(-127.0f) ? set1(-127.0f) : x) - floor_clamped(x); }
  static V scale_by_exponent(V mantissa, V x) {
    const V whole = floor_clamped(x);
    I e = {};
    for (int i = 0; i < W; ++i) e[i] = whole[i] == whole[i] ? static_cast<int32_t>(whole[i]) : 0;
    const I bits = (e + 127) << 23;
    V power;
    std::memcpy(&power, &bits, sizeof power);
    return x < set1(-126.0f) ? zero() : mantissa * power;
  }

  struct Bounds {
    I lts, lte, uts, ute;
  };
  static I load_int(const int32_t* p) {
    I x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static Bounds load_bounds(const int32_t* lts, const int32_t* lte, const int32_t* uts, const int32_t* ute) {
    return {load_int(lts), load_int(lte), load_int(uts), load_int(ute)};
  }
  static void hide(float* s, const Bounds& b, int32_t row, float value) {
    const I r = {row, row, row, row};
    const I hidden = ((r >= b.lts) & (r < b.lte)) | ((r >= b.uts) & (r < b.ute));
    store(s, hidden ? set1(value) : load(s));
  }

  static void half_to_float(const uint16_t* src, float* dst, int n) {
    for (int i = 0; i < n; ++i) dst[i] = scalar::half_to_float(src[i]);
  }
  static void float_to_half(const float* src, uint16_t* dst, int n) {
    for (int i = 0; i < n; ++i) dst[i] = scalar::float_to_half(src[i]);
  }
  static void transpose16(const uint32_t* src, int64_t src_stride, uint32_t* dst, int64_t dst_stride) {
    scalar::transpose16(src, src_stride, dst, dst_stride);
  }
};

}  // namespace flashmask::FLASHMASK_ISA
