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

// Whether row tile r of query head h sees anything of column tiles [first, last).
bool touches(const Problem& p, int64_t b, int64_t h, int64_t r, int64_t first, int64_t last) {
  const Stats stats = plan_of(p, b, h).tiles();
  const KeptTiles kept(p, b, h, r);
  const int32_t r0 = static_cast<int32_t>(r * kTile);
  const int32_t r1 = static_cast<int32_t>(std::min<int64_t>(r0 + kTile, p.seqlen_q));
  for (int64_t c = first; c < last; ++c)
    if (kept(c) && classify(stats, c, r0, r1) != kSkip) return true;
  return false;
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

BackwardCut cut_backward(const Problem& p, int64_t query_columns) {
  constexpr int64_t kTasks = 32, kBytes = int64_t{256} << 20;
  const int64_t tiles = col_tiles_of(p), group = group_of(p), kv_heads = p.batch * p.heads_k;
  BackwardCut cut;
  // Query heads first: their buffers have the size of dk and dv, those of runs have the size of dq.
  cut.heads = std::max<int64_t>(1, ceil_div(group, std::max<int64_t>(1, ceil_div(kTasks, kv_heads))));
  cut.splits = std::max<int64_t>(1, ceil_div(group, cut.heads));
  const int64_t bytes =
      p.batch * p.heads_q * row_tiles_of(p) * kTile * query_columns * 4;  // dq of one run of all heads
  const int64_t wanted = ceil_div(kTasks, kv_heads * cut.splits);
  const int64_t affordable = std::max<int64_t>(1, kBytes / std::max<int64_t>(1, bytes));
  // A short run leaves a buffer for each few columns that it owns, and narrow masks would mostly add up buffers.
  const int64_t shortest = std::clamp<int64_t>(ceil_div(tiles, 8), 1, 4);
  cut.tiles = std::max(shortest, ceil_div(tiles, std::min(wanted, affordable)));
  cut.runs = ceil_div(tiles, cut.tiles);
  return cut;
}

void backward(const BackwardProblem& p, const Kernels& kernels, const Workers& workers) {
  if (p.batch * p.heads_k == 0) return;
  const int64_t row_tiles = row_tiles_of(p), col_tiles = col_tiles_of(p), group = group_of(p);
  const int64_t row_words = kernels.row_words(p), columns = kernels.query_columns(p);
  const int64_t kv_heads = p.batch * p.heads_k, head_tiles = p.batch * p.heads_q * row_tiles;
  const int64_t dq_tile = kTile * columns;  // dq of a row tile of a query head
  const int64_t scratch_words = round_up(kernels.backward_scratch(p), 16);
  const BackwardCut cut = cut_backward(p, columns);

  // Many short sequences: one task does a whole kv head, from packing to dq.
  if (cut.runs == 1 && cut.splits == 1 && kv_heads >= 4 * workers.count) {
    const int64_t tiles = group * row_tiles, rows_at = scratch_words, grad_q_at = rows_at + tiles * row_words;
    hand_out(workers, kv_heads, grad_q_at + tiles * dq_tile, [&](uint32_t* scratch, int64_t i) {
      const int64_t b = i / p.heads_k, hk = i % p.heads_k, first = hk * group;
      uint32_t* rows = scratch + rows_at;
      float* grad_q = reinterpret_cast<float*>(scratch + grad_q_at);
      std::vector<int32_t> slots(tiles);
      std::iota(slots.begin(), slots.end(), 0);
      for (int64_t t = 0; t < tiles; ++t)
        kernels.backward_pack(p, b, first + t / row_tiles, t % row_tiles, rows + t * row_words);
      kernels.backward(p, {b, hk, first, first + group, 0, col_tiles, rows, grad_q, slots.data(), nullptr}, scratch);
      for (int64_t t = 0; t < tiles; ++t) {
        const float* part = grad_q + t * dq_tile;
        kernels.finish_query(p, b, first + t / row_tiles, t % row_tiles, &part, 1);
      }
    });
    return;
  }

  Buffer<uint32_t> rows(head_tiles * row_words);
  hand_out(workers, head_tiles, 0, [&](uint32_t*, int64_t i) {
    const int64_t r = i % row_tiles, head = i / row_tiles;
    kernels.backward_pack(p, head / p.heads_q, head % p.heads_q, r, rows.get() + i * row_words);
  });

  // Which shares of dq there are: [runs][heads][row tiles] -> slots. A narrow mask touches few of them.
  std::vector<int32_t> slots(cut.runs * head_tiles);
  hand_out(workers, cut.runs * p.batch * p.heads_q, 0, [&](uint32_t*, int64_t i) {
    const int64_t run = i / (p.batch * p.heads_q), head = i % (p.batch * p.heads_q);
    for (int64_t r = 0; r < row_tiles; ++r) {
      const int64_t last = std::min(col_tiles, (run + 1) * cut.tiles);
      slots[i * row_tiles + r] = touches(p, head / p.heads_q, head % p.heads_q, r, run * cut.tiles, last) ? 0 : kNoSlot;
    }
  });
  int32_t slot_count = 0;
  for (int32_t& slot : slots)
    if (slot != kNoSlot) slot = slot_count++;
  Buffer<float> grad_q(slot_count * dq_tile);
  // dk and dv: [splits][kv heads][column tiles][kTile][columns], unless a task has all heads of a group.
  const int64_t kv_tile = kTile * kernels.key_value_columns(p), kv_share = col_tiles * kv_tile;
  Buffer<float> grad_kv(cut.splits == 1 ? 0 : cut.splits * kv_heads * kv_share);

  const int64_t parts = kv_heads * cut.splits, tasks = parts * cut.runs;
  const auto task_of = [&](int64_t i) {
    const int64_t run = i / parts, split = i % parts / kv_heads, kv = i % kv_heads;
    const int64_t b = kv / p.heads_k, hk = kv % p.heads_k;
    const int64_t first = hk * group + split * cut.heads, last = std::min(first + cut.heads, (hk + 1) * group);
    const int64_t tile = (b * p.heads_q + first) * row_tiles;  // in [heads][row tiles]
    return BackwardTask{b,
                        hk,
                        first,
                        last,
                        run * cut.tiles,
                        std::min(col_tiles, (run + 1) * cut.tiles),
                        rows.get() + tile * row_words,
                        grad_q.get(),
                        slots.data() + run * head_tiles + tile,
                        cut.splits == 1 ? nullptr : grad_kv.get() + (split * kv_heads + kv) * kv_share};
  };
  std::vector<int64_t> cost(tasks, 0), order(tasks);
  for (int64_t i = 0; i < tasks; ++i) {
    const BackwardTask t = task_of(i);
    for (int64_t h = t.first_head; h < t.last_head; ++h) {
      const int32_t* tile_cost = plan_of(p, t.batch, h).col_cost();
      for (int64_t c = t.first_tile; c < t.last_tile; ++c) cost[i] += tile_cost[c];
    }
  }
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return cost[x] > cost[y]; });
  hand_out(workers, tasks, scratch_words,
           [&](uint32_t* scratch, int64_t i) { kernels.backward(p, task_of(order[i]), scratch); });

  if (cut.splits > 1) {
    hand_out(workers, kv_heads * col_tiles, 0, [&](uint32_t*, int64_t i) {
      const int64_t c = i % col_tiles, kv = i / col_tiles;
      std::vector<float*> shares(cut.splits);
      for (int64_t s = 0; s < cut.splits; ++s) shares[s] = grad_kv.get() + (s * kv_heads + kv) * kv_share + c * kv_tile;
      kernels.finish_key_value(p, kv / p.heads_k, kv % p.heads_k, c, shares.data(), cut.splits);
    });
  }
  hand_out(workers, head_tiles, 0, [&](uint32_t*, int64_t i) {
    const int64_t r = i % row_tiles, head = i / row_tiles;
    std::vector<const float*> shares;
    for (int64_t run = 0; run < cut.runs; ++run) {
      const int32_t slot = slots[run * head_tiles + i];
      if (slot != kNoSlot) shares.push_back(grad_q.get() + slot * dq_tile);
    }
    kernels.finish_query(p, head / p.heads_q, head % p.heads_q, r, shares.data(), static_cast<int64_t>(shares.size()));
  });
}

}  // namespace flashmask
