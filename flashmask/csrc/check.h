// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The rules of flashmask/validation.py on the arguments of the ops, in the same order and with the same sentences
// (a test compares them). A kernel relies on nobody having checked before it.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "plan.h"
#include "stable_abi.h"

namespace flashmask::check {

using MaybeTensor = std::optional<Tensor>;
constexpr int64_t kMaxSeqlen = 2147483519;

inline std::string text(int64_t x) { return std::to_string(x); }

template <class Sizes>
std::string text_of_sizes(const Sizes& sizes) {
  std::string s = "[";
  for (size_t i = 0; i < sizes.size(); ++i) s += (i ? ", " : "") + std::to_string(sizes[i]);
  return s + "]";
}
inline std::string shape(const Tensor& t) { return text_of_sizes(t.sizes()); }

inline const char* dtype_name(ScalarType t) {
  switch (t) {
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Bool: return "bool";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::UInt16: return "uint16";
    case ScalarType::UInt32: return "uint32";
    case ScalarType::UInt64: return "uint64";
    case ScalarType::ComplexHalf: return "complex32";
    case ScalarType::ComplexFloat: return "complex64";
    case ScalarType::ComplexDouble: return "complex128";
    default: return torch::headeronly::toString(t);
  }
}

inline std::string device_name(const Tensor& t) {
  const Device d = t.device();
  std::string name = d.type() == DeviceType::CPU    ? "cpu"
                     : d.type() == DeviceType::Meta ? "meta"
                     : d.is_cuda()                  ? "cuda"
                                                    : "other";
  return d.index() >= 0 && d.type() != DeviceType::CPU ? name + ":" + std::to_string(d.index()) : name;
}

[[noreturn]] inline void fail(const std::string& sentence) { throw std::runtime_error(sentence); }

inline void rank(const std::string& name, const Tensor& t, const std::string& layout) {
  if (t.dim() != 4) fail(name + " must have 4 dimensions " + layout + ", but has shape " + shape(t) + "; reshape it.");
}
inline void same_dtype(const std::string& name, const Tensor& t, const Tensor& query) {
  if (t.scalar_type() != query.scalar_type())
    fail(name + " must have the dtype of query, " + dtype_name(query.scalar_type()) + ", but is " +
         dtype_name(t.scalar_type()) + "; convert it with .to(query.dtype).");
}
inline void int32(const std::string& name, const Tensor& t) {
  if (t.scalar_type() != ScalarType::Int)
    fail(name + " must be int32, but is " + dtype_name(t.scalar_type()) + "; convert it with .to(torch.int32).");
}
inline void device(const std::string& name, const Tensor& t, const Tensor& query) {
  if (!(t.device() == query.device()))
    fail(name + " must be on the device of query, " + device_name(query) + ", but is on " + device_name(t) +
         "; move it with .to(query.device).");
}
inline void batch(const std::string& name, const Tensor& t, int64_t expected) {
  if (t.size(0) != expected)
    fail(name + " must have the batch size of query, " + text(expected) + ", but has shape " + shape(t) +
         "; expand or slice its first dimension.");
}
inline void head_dim(const std::string& name, const Tensor& t) {
  if (t.size(3) < 1 || t.size(3) > kMaxHeadDim)
    fail(name + " must have a head dim between 1 and 256, but has shape " + shape(t) + "; split it into more heads.");
}
inline void seqlen(const std::string& name, const Tensor& t) {
  if (t.size(1) > kMaxSeqlen)
    fail(name + " must have a sequence length of at most 2147483519, but has shape " + shape(t) +
         "; split it into several calls.");
}
inline void mask_heads(const std::string& name, const Tensor& t, int64_t heads_q, int64_t heads_k) {
  const int64_t h = t.size(1);
  if (h != 1 && h != heads_k && h != heads_q)
    fail(name + " must have 1, " + text(heads_k) + " (key) or " + text(heads_q) + " (query) heads, but has shape " +
         shape(t) + "; expand or slice its dimension 1.");
}

inline void bounds_count(const Tensor& bounds, bool causal) {
  const int64_t count = bounds.size(3);
  const std::string name = "startend_row_indices must have ";
  if (count != 1 && count != 2 && count != 4)
    fail(name + "1, 2 or 4 bounds in its last dimension, but has shape " + shape(bounds) +
         "; see the table of masks in docs/flashmask.md.");
  if (causal && count == 4)
    fail(name + "1 or 2 bounds when causal=True, but has shape " + shape(bounds) +
         "; pass causal=False and put the triangle into the bounds.");
  if (!causal && count == 1)
    fail(name + "2 or 4 bounds when causal=False, but has shape " + shape(bounds) +
         "; pass causal=True or add the second bound.");
}

inline void bounds_seqlen(const Tensor& bounds, int64_t seqlen_k) {
  if (bounds.size(2) != seqlen_k)
    fail("startend_row_indices must have one column per key, " + text(seqlen_k) + ", but has shape " + shape(bounds) +
         "; build the mask for this number of keys.");
}

inline void block_shape(const Tensor& block_mask, int64_t seqlen_q, int64_t seqlen_k) {
  const int64_t rows = ceil_div(seqlen_q, kTile), columns = ceil_div(seqlen_k, kTile);
  if (block_mask.size(2) != rows || block_mask.size(3) != columns)
    fail("block_mask must have one value per 128 x 128 tile, [batch, heads, " + text(rows) + ", " + text(columns) +
         "], but has shape " + shape(block_mask) + "; build it for these sequence lengths.");
}

inline void qkv(const Tensor& query, const Tensor& key, const Tensor& value) {
  rank("query", query, "[batch, seqlen_q, heads_q, head_dim]");
  rank("key", key, "[batch, seqlen_k, heads_k, head_dim]");
  rank("value", value, "[batch, seqlen_k, heads_k, head_dim_v]");
  const ScalarType t = query.scalar_type();
  if (t != ScalarType::Float && t != ScalarType::BFloat16 && t != ScalarType::Half)
    fail(std::string("query must be float32, bfloat16 or float16, but is ") + dtype_name(t) +
         "; convert it with .to(torch.bfloat16).");
  const auto like_query = [&query](const char* name, const Tensor& x) {
    same_dtype(name, x, query);
    device(name, x, query);
    batch(name, x, query.size(0));
  };
  like_query("key", key);
  like_query("value", value);
  head_dim("query", query);
  if (key.size(3) != query.size(3))
    fail("key must have the head dim of query, " + text(query.size(3)) + ", but has shape " + shape(key) +
         "; project both to one size.");
  head_dim("value", value);
  if (value.size(1) != key.size(1))
    fail("value must have the sequence length of key, " + text(key.size(1)) + ", but has shape " + shape(value) +
         "; slice or pad its dimension 1.");
  if (value.size(2) != key.size(2))
    fail("value must have as many heads as key, " + text(key.size(2)) + ", but has shape " + shape(value) +
         "; expand or slice its dimension 2.");
  const int64_t hq = query.size(2), hk = key.size(2);
  if (hk != 0 ? hq % hk != 0 : hq != 0)
    fail("query must have a multiple of the heads of key, " + text(hk) + ", but has shape " + shape(query) +
         "; repeat the heads of key and value until they divide.");
  seqlen("query", query);
  seqlen("key", key);
}

// Shape [batch, heads, length] of a plan.
struct PlanShape {
  int64_t size[3];
};
inline PlanShape plan_shape(const MaybeTensor& bounds, const MaybeTensor& block_mask, int64_t seqlen_q,
                            int64_t seqlen_k) {
  PlanShape s{{1, 1, PlanLayout(seqlen_q, seqlen_k).length}};
  for (const MaybeTensor* part : {&bounds, &block_mask}) {
    if (!part->has_value()) continue;
    if ((*part)->size(0) != 1) s.size[0] = (*part)->size(0);
    if ((*part)->size(1) != 1) s.size[1] = (*part)->size(1);
  }
  if (bounds && block_mask) s.size[1] = std::max(bounds->size(1), block_mask->size(1));
  return s;
}

inline void mask(const Tensor& query, const Tensor& key, const MaybeTensor& bounds, const MaybeTensor& block_mask,
                 const MaybeTensor& plan, bool causal) {
  const int64_t seqlen_q = query.size(1), seqlen_k = key.size(1), heads_q = query.size(2), heads_k = key.size(2);
  if (bounds) {
    const std::string name = "startend_row_indices";
    rank(name, *bounds, "[batch, heads, seqlen_k, bounds]");
    int32(name, *bounds);
    device(name, *bounds, query);
    batch(name, *bounds, query.size(0));
    mask_heads(name, *bounds, heads_q, heads_k);
    bounds_seqlen(*bounds, seqlen_k);
    bounds_count(*bounds, causal);
  }
  if (block_mask) {
    rank("block_mask", *block_mask, "[batch, heads, rows, columns]");
    int32("block_mask", *block_mask);
    device("block_mask", *block_mask, query);
    batch("block_mask", *block_mask, query.size(0));
    mask_heads("block_mask", *block_mask, heads_q, heads_k);
    block_shape(*block_mask, seqlen_q, seqlen_k);
  }
  if (plan) {
    int32("plan", *plan);
    device("plan", *plan, query);
    const PlanShape want = plan_shape(bounds, block_mask, seqlen_q, seqlen_k);
    const bool good = plan->dim() == 3 && (plan->size(0) == 1 || plan->size(0) == want.size[0]) &&
                      plan->size(1) == want.size[1] && plan->size(2) == want.size[2];
    if (!good)
      fail("plan must have shape [" + text(want.size[0]) + ", " + text(want.size[1]) + ", " + text(want.size[2]) +
           "] for this mask and these sequence lengths, but has shape " + shape(*plan) + "; make the FlashMask again.");
  }
}

inline void scale(double softmax_scale) {
  if (!std::isfinite(softmax_scale))
    fail(std::string("softmax_scale must be finite, but is ") +
         (std::isnan(softmax_scale) ? "nan"
          : softmax_scale > 0       ? "inf"
                                    : "-inf") +
         "; leave it out for 1 / sqrt(head_dim).");
}

inline void like_forward(const std::string& name, const Tensor& t, std::initializer_list<int64_t> expected) {
  bool same = t.dim() == static_cast<int64_t>(expected.size());
  int64_t i = 0;
  for (int64_t n : expected) same = same && t.size(i++) == n;
  if (!same)
    fail(name + " must have shape " + text_of_sizes(std::vector<int64_t>(expected)) + ", but has shape " + shape(t) +
         "; pass the tensors which belong to this forward call.");
}

inline void results(const Tensor& grad_out, const MaybeTensor& grad_lse, const Tensor& query, const Tensor& value,
                    const Tensor& out, const Tensor& lse) {
  const int64_t b = query.size(0), sq = query.size(1), h = query.size(2);
  const auto like_out = [&](const char* name, const Tensor& t) {
    same_dtype(name, t, query);
    device(name, t, query);
    like_forward(name, t, {b, sq, h, value.size(3)});
  };
  const auto like_lse = [&](const std::string& name, const Tensor& t) {
    if (t.scalar_type() != ScalarType::Float)
      fail(name + " must be float32, but is " + dtype_name(t.scalar_type()) + "; convert it with .to(torch.float32).");
    device(name, t, query);
    like_forward(name, t, {b, h, sq});
  };
  like_out("grad_out", grad_out);
  like_out("out", out);
  like_lse("lse", lse);
  if (grad_lse) like_lse("grad_lse", *grad_lse);
}

inline void plan_arguments(const MaybeTensor& bounds, const MaybeTensor& block_mask, int64_t seqlen_q, int64_t seqlen_k,
                           bool causal) {
  const auto length = [](const std::string& name, int64_t n) {
    if (n < 0 || n > kMaxSeqlen)
      fail(name + " must be between 0 and 2147483519, but is " + text(n) + "; pass the length of the sequence.");
  };
  length("seqlen_q", seqlen_q);
  length("seqlen_k", seqlen_k);
  if (bounds) {
    rank("startend_row_indices", *bounds, "[batch, heads, seqlen_k, bounds]");
    int32("startend_row_indices", *bounds);
    bounds_seqlen(*bounds, seqlen_k);
    bounds_count(*bounds, causal);
  }
  if (block_mask) {
    rank("block_mask", *block_mask, "[batch, heads, rows, columns]");
    int32("block_mask", *block_mask);
    block_shape(*block_mask, seqlen_q, seqlen_k);
  }
  if (bounds && block_mask) {
    if (!(block_mask->device() == bounds->device()))
      fail("block_mask must be on the device of startend_row_indices, " + device_name(*bounds) + ", but is on " +
           device_name(*block_mask) + "; move it with .to(startend_row_indices.device).");
    if (bounds->size(0) != block_mask->size(0) && bounds->size(0) != 1 && block_mask->size(0) != 1)
      fail("block_mask must have a batch size of 1 or that of startend_row_indices, " + text(bounds->size(0)) +
           ", but has shape " + shape(*block_mask) + "; expand or slice its first dimension.");
    const int64_t few = std::min(bounds->size(1), block_mask->size(1)),
                  many = std::max(bounds->size(1), block_mask->size(1));
    if (few != many && (few == 0 || many % few != 0))
      fail("block_mask must have heads which divide, or are divided by, those of startend_row_indices, " +
           text(bounds->size(1)) + ", but has shape " + shape(*block_mask) + "; expand or slice its dimension 1.");
  }
}

}  // namespace flashmask::check
