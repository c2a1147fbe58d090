// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// From strided tensors of any dtype to packed words (see microkernel.h), and from float rows back to tensors.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "types.h"

namespace flashmask::FLASHMASK_ISA {

inline void bf16_to_float(const uint16_t* src, float* dst, int n) {
  for (int i = 0; i < n; ++i) dst[i] = std::bit_cast<float>(static_cast<uint32_t>(src[i]) << 16);
}

inline void float_to_bf16(const float* src, uint16_t* dst, int n) {
  for (int i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(src[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    dst[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
  }
}

inline void load_float_row(const char* src, DType dtype, int n, float* dst) {
  switch (dtype) {
    case DType::kFloat32: std::memcpy(dst, src, n * sizeof(float)); break;
    case DType::kBFloat16: bf16_to_float(reinterpret_cast<const uint16_t*>(src), dst, n); break;
    case DType::kFloat16: Simd::half_to_float(reinterpret_cast<const uint16_t*>(src), dst, n); break;
  }
}

inline void store_float_row(const float* src, DType dtype, int n, char* dst) {
  switch (dtype) {
    case DType::kFloat32: std::memcpy(dst, src, n * sizeof(float)); break;
    case DType::kBFloat16: float_to_bf16(src, reinterpret_cast<uint16_t*>(dst), n); break;
    case DType::kFloat16: Simd::float_to_half(src, reinterpret_cast<uint16_t*>(dst), n); break;
  }
}

// A row of n elements as `words` words, the rest zero.
template <class Dot>
inline void load_word_row(const char* src, DType dtype, int n, uint32_t* dst, int words) {
  if constexpr (Dot::kPair == 2) {
    std::memcpy(dst, src, n * 2);
    std::memset(reinterpret_cast<char*>(dst) + n * 2, 0, words * 4 - n * 2);
  } else {
    load_float_row(src, dtype, n, reinterpret_cast<float*>(dst));
    std::fill(dst + n, dst + words, 0u);
  }
}

// Rows [first, first + count) of one head of a tensor.
struct Rows {
  const char* base;
  int64_t stride_bytes;
  DType dtype;
  int dim;
  const char* at(int64_t i) const { return base + i * stride_bytes; }
};

inline Rows rows_of(const View& t, DType dtype, int dim, int64_t b, int64_t h, int64_t first) {
  const int64_t size = dtype_size(dtype);
  return {t.data + (b * t.stride_b + h * t.stride_h + first * t.stride_s) * size, t.stride_s * size, dtype, dim};
}

// dst[w][kTile columns] = word w of row i in column i, for rows that `load(i, row, padded words)` provides.
template <class Load>
inline void transpose_rows(int words, int count, uint32_t* dst, Load load) {
  const int padded = static_cast<int>(round_up(words, 16));
  alignas(64) uint32_t block[16 * kMaxHeadDim];
  alignas(64) uint32_t turned[16 * 16];
  for (int i = 0; i < count; i += 16) {
    for (int r = 0; r < 16; ++r) {
      uint32_t* row = block + r * padded;
      if (i + r < count) {
        load(i + r, row, padded);
      } else {
        std::fill(row, row + padded, 0u);
      }
    }
    for (int w = 0; w < words; w += 16) {
      if (w + 16 <= words) {
        Simd::transpose16(block + w, padded, dst + static_cast<int64_t>(w) * kTile + i, kTile);
      } else {
        Simd::transpose16(block + w, padded, turned, 16);
        for (int k = 0; w + k < words; ++k)
          std::memcpy(dst + static_cast<int64_t>(w + k) * kTile + i, turned + k * 16, 64);
      }
    }
  }
}

// The packings. `zero(i)` says which of the rows to replace by zeros: rows of the tensor that no kernel may see.
template <class Dot>
struct Pack {
  static int row_words(int dim) { return static_cast<int>(ceil_div(dim, Dot::kPair)); }

  // dst[i][w]: rows as they are, as the left operand of a product summed over dim.
  template <class Zero>
  static void rows(const Rows& src, int count, uint32_t* dst, int64_t dst_stride, Zero zero) {
    const int words = row_words(src.dim);
    for (int i = 0; i < count; ++i) {
      if (zero(i)) {
        std::fill(dst + i * dst_stride, dst + i * dst_stride + words, 0u);
      } else {
        load_word_row<Dot>(src.at(i), src.dtype, src.dim, dst + i * dst_stride, words);
      }
    }
  }

  // dst[w][kTile columns]: transposed, as the right operand of a product summed over dim. Whole units are written.
  template <class Zero>
  static void transposed(const Rows& src, int count, uint32_t* dst, Zero zero) {
    transpose_rows(row_words(src.dim), count, dst, [&](int i, uint32_t* row, int padded) {
      if (zero(i)) {
        std::fill(row, row + padded, 0u);
      } else {
        load_word_row<Dot>(src.at(i), src.dtype, src.dim, row, padded);
      }
    });
  }

  // dst[i / pair][columns]: pairs of rows side by side, as the right operand of a product summed over rows. Whole units
  // of rows are written, and `columns` (>= dim) words of each.
  template <class Zero>
  static void paired(const Rows& src, int count, uint32_t* dst, int columns, Zero zero) {
    const int whole = static_cast<int>(round_up(count, kUnit));
    if constexpr (Dot::kPair == 1) {
      for (int i = 0; i < whole; ++i) {
        uint32_t* row = dst + static_cast<int64_t>(i) * columns;
        if (i < count && !zero(i)) {
          load_word_row<Dot>(src.at(i), src.dtype, src.dim, row, columns);
        } else {
          std::fill(row, row + columns, 0u);
        }
      }
    } else {
      alignas(64) uint16_t none[kMaxHeadDim] = {};
      for (int i = 0; i < whole; i += 2) {
        const auto* even = reinterpret_cast<const uint16_t*>(i < count && !zero(i) ? src.at(i) : nullptr);
        const auto* odd = reinterpret_cast<const uint16_t*>(i + 1 < count && !zero(i + 1) ? src.at(i + 1) : nullptr);
        if (!even) even = none;
        if (!odd) odd = none;
        uint32_t* row = dst + static_cast<int64_t>(i / 2) * columns;
        for (int d = 0; d < src.dim; ++d) row[d] = even[d] | static_cast<uint32_t>(odd[d]) << 16;
        std::fill(row + src.dim, row + columns, 0u);
      }
    }
  }
};

}  // namespace flashmask::FLASHMASK_ISA
