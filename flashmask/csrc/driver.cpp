// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "driver.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <vector>

#include "memory.h"

namespace flashmask {
namespace {

// Hands out tasks 0 .. count - 1 in order to whichever worker is free. Each task writes its own results, so who does
// what changes nothing. `body(worker scratch, task)`.
template <class Body>
void hand_out(const Workers& workers, int64_t count, int64_t scratch_words, const Body& body) {
  if (count == 0) return;
  const auto work = [&](std::atomic<int64_t>& next) {
    Buffer<uint32_t> scratch(scratch_words);
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(scratch.get(), i);
  };
  std::atomic<int64_t> next{0};
  if (count == 1 || workers.count == 1) {
    work(next);
  } else {
    workers.run([&](int) { work(next); });
  }
}

}  // namespace

void forward(const ForwardProblem& p, const Kernels& kernels, const Workers& workers) {
  const int64_t row_tiles = row_tiles_of(p), col_tiles = col_tiles_of(p);
  const int64_t tile_words = kernels.packed_words(p), head_words = tile_words * col_tiles;
  const int64_t heads = p.batch * p.heads_q;
  if (heads * row_tiles == 0) return;
  const int64_t scratch_words = round_up(kernels.forward_scratch(p), 16), kv_heads = p.batch * p.heads_k;

  // Many short sequences: one task does a whole kv head while its keys are in the nearest cache.
  if (col_tiles <= 4 && kv_heads >= 4 * workers.count) {
    hand_out(workers, kv_heads, scratch_words + head_words, [&](uint32_t* scratch, int64_t i) {
      const int64_t b = i / p.heads_k, hk = i % p.heads_k;
      uint32_t* packed = scratch + scratch_words;
      for (int64_t c = 0; c < col_tiles; ++c) kernels.forward_pack(p, b, hk, c, packed + c * tile_words);
      for (int64_t h = hk * group_of(p); h < (hk + 1) * group_of(p); ++h)
        for (int64_t r = 0; r < row_tiles; ++r) kernels.forward(p, b, h, r, packed, scratch);
    });
    return;
  }

  Buffer<uint32_t> packed(kv_heads * head_words);
  hand_out(workers, kv_heads * col_tiles, 0, [&](uint32_t*, int64_t i) {
    const int64_t c = i % col_tiles, head = i / col_tiles;
    kernels.forward_pack(p, head / p.heads_k, head % p.heads_k, c, packed.get() + head * head_words + c * tile_words);
  });
  // The row tiles of a head are ordered by descending cost; rank by rank over all heads puts the long tasks first.
  hand_out(workers, heads * row_tiles, scratch_words, [&](uint32_t* scratch, int64_t i) {
    const int64_t rank = i / heads, b = i % heads / p.heads_q, h = i % p.heads_q;
    const int64_t r = plan_of(p, b, h).row_order()[rank];
    kernels.forward(p, b, h, r, packed.get() + (b * p.heads_k + h / group_of(p)) * head_words, scratch);
  });
}

int64_t backward_run_length(const Problem& p, int64_t query_columns) {
  constexpr int64_t kTasks = 32, kBytes = int64_t{256} << 20;
  const int64_t tiles = col_tiles_of(p);
  const int64_t bytes =
      p.batch * p.heads_q * row_tiles_of(p) * kTile * query_columns * 4;  // dq of one run of all heads
  const int64_t wanted = ceil_div(kTasks, std::max<int64_t>(1, p.batch * p.heads_k));
  const int64_t affordable = std::max<int64_t>(1, kBytes / std::max<int64_t>(1, bytes));
  // A short run leaves a buffer for each few columns that it owns, and narrow masks would mostly add up buffers.
  const int64_t shortest = std::clamp<int64_t>(ceil_div(tiles, 8), 1, 4);
  return std::max(shortest, ceil_div(tiles, std::min(wanted, affordable)));
}

void backward(const BackwardProblem& p, const Kernels& kernels, const Workers& workers) {
  if (p.batch * p.heads_k == 0) return;
  const int64_t row_tiles = row_tiles_of(p), col_tiles = col_tiles_of(p), group = group_of(p);
  const int64_t row_words = kernels.row_words(p), columns = kernels.query_columns(p);
  const int64_t kv_heads = p.batch * p.heads_k, heads = p.batch * p.heads_q;
  const int64_t head_tiles = heads * row_tiles;
  const int64_t length = backward_run_length(p, columns), runs = ceil_div(col_tiles, length);
  const int64_t share = group * row_tiles * kTile * columns;  // dq of one task
  const int64_t scratch_words = round_up(kernels.backward_scratch(p), 16);

  // Many short sequences: one task does a whole kv head, from packing to dq.
  if (runs == 1 && kv_heads >= 4 * workers.count) {
    const int64_t tiles = group * row_tiles, rows_at = scratch_words, grad_q_at = rows_at + tiles * row_words;
    hand_out(workers, kv_heads, grad_q_at + share, [&](uint32_t* scratch, int64_t i) {
      const int64_t b = i / p.heads_k, hk = i % p.heads_k;
      uint32_t* rows = scratch + rows_at;
      float* grad_q = reinterpret_cast<float*>(scratch + grad_q_at);
      std::vector<uint8_t> touched(tiles, 0);
      for (int64_t t = 0; t < tiles; ++t)
        kernels.backward_pack(p, b, hk * group + t / row_tiles, t % row_tiles, rows + t * row_words);
      kernels.backward(p, {b, hk, 0, col_tiles, rows, grad_q, touched.data()}, scratch);
      for (int64_t t = 0; t < tiles; ++t) {
        const float* part = grad_q + t * kTile * columns;
        kernels.finish_query(p, b, hk * group + t / row_tiles, t % row_tiles, &part, touched[t]);
      }
    });
    return;
  }

  Buffer<uint32_t> rows(head_tiles * row_words);
  hand_out(workers, head_tiles, 0, [&](uint32_t*, int64_t i) {
    const int64_t r = i % row_tiles, head = i / row_tiles;
    kernels.backward_pack(p, head / p.heads_q, head % p.heads_q, r, rows.get() + i * row_words);
  });

  // One dq buffer per run: [runs][heads][row tiles][kTile][columns]. Pages that no tile touches are never committed.
  Buffer<float> grad_q(runs * kv_heads * share);
  std::vector<uint8_t> touched(runs * head_tiles, 0);

  std::vector<int64_t> cost(runs * kv_heads, 0), order(runs * kv_heads);
  for (int64_t i = 0; i < runs * kv_heads; ++i) {
    const int64_t run = i / kv_heads, b = i % kv_heads / p.heads_k, hk = i % p.heads_k;
    for (int64_t h = hk * group; h < (hk + 1) * group; ++h) {
      const int32_t* tile_cost = plan_of(p, b, h).col_cost();
      for (int64_t c = run * length; c < std::min(col_tiles, (run + 1) * length); ++c) cost[i] += tile_cost[c];
    }
  }
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return cost[x] > cost[y]; });

  hand_out(workers, runs * kv_heads, scratch_words, [&](uint32_t* scratch, int64_t i) {
    const int64_t task = order[i], run = task / kv_heads, kv_head = task % kv_heads;
    const BackwardTask t{kv_head / p.heads_k,
                         kv_head % p.heads_k,
                         run * length,
                         std::min(col_tiles, (run + 1) * length),
                         rows.get() + kv_head * group * row_tiles * row_words,
                         grad_q.get() + task * share,
                         touched.data() + task * group * row_tiles};
    kernels.backward(p, t, scratch);
  });

  hand_out(workers, head_tiles, 0, [&](uint32_t*, int64_t i) {
    const int64_t r = i % row_tiles, head = i / row_tiles;
    std::vector<const float*> parts;
    for (int64_t run = 0; run < runs; ++run) {
      if (touched[run * head_tiles + i]) parts.push_back(grad_q.get() + (run * head_tiles + i) * kTile * columns);
    }
    kernels.finish_query(p, head / p.heads_q, head % p.heads_q, r, parts.data(), static_cast<int64_t>(parts.size()));
  });
}

}  // namespace flashmask
