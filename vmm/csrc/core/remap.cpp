// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See remap.h.

#include "core/remap.h"

#include <algorithm>

namespace vmm {
namespace {

constexpr uint64_t kUnmapPiece = 64u << 20;

struct Span {
  Address at;
  uint64_t size;
};

// Sorted page addresses as maximal contiguous spans.
std::vector<Span> spans(std::vector<Address> addresses, uint64_t page_size) {
  std::sort(addresses.begin(), addresses.end());
  std::vector<Span> out;
  for (Address at : addresses) {
    if (!out.empty() && out.back().at + out.back().size == at) {
      out.back().size += page_size;
    } else {
      out.push_back({at, page_size});
    }
  }
  return out;
}

}  // namespace

vmm_status Remap::unmap(Address at, uint64_t size, uint64_t* done) {
  *done = 0;
  while (*done < size) {
    uint64_t piece = std::min(size - *done, std::max(kUnmapPiece, page_size_));
    if (vmm_status status = driver_->unmap(device_, at + *done, piece); status != VMM_OK) return status;
    *done += piece;
  }
  return VMM_OK;
}

bool Remap::map_back(const Move& move, bool* mapped) {
  Address at = move.from->address_of(move.from_slot);
  *mapped = driver_->map(device_, at, page_size_, (*pages_)[move.page].handle) == VMM_OK;
  return *mapped && driver_->set_access(device_, at, page_size_) == VMM_OK;
}

vmm_status Remap::run(const std::vector<Move>& moves, Broken* broken) {
  std::vector<Address> sources, destinations;
  for (const Move& move : moves) {
    if (move.from != nullptr && !move.alias) sources.push_back(move.from->address_of(move.from_slot));
    if (move.to != nullptr) destinations.push_back(move.to->address_of(move.to_slot));
  }
  vmm_status failure = VMM_OK;

  std::vector<Span> unmapped;
  for (const Span& span : spans(std::move(sources), page_size_)) {
    uint64_t done = 0;
    failure = unmap(span.at, span.size, &done);
    if (done > 0) unmapped.push_back({span.at, done});
    if (failure != VMM_OK) break;
  }

  size_t mapped = 0;
  if (failure == VMM_OK) {
    for (; mapped < moves.size(); ++mapped) {
      const Move& move = moves[mapped];
      if (move.to == nullptr) continue;
      Address at = move.to->address_of(move.to_slot);
      failure = driver_->map(device_, at, page_size_, (*pages_)[move.page].handle);
      if (failure != VMM_OK) break;
    }
  }
  if (failure == VMM_OK) {
    for (const Span& span : spans(std::move(destinations), page_size_)) {
      failure = driver_->set_access(device_, span.at, span.size);
      if (failure != VMM_OK) break;
    }
  }
  if (failure == VMM_OK) return VMM_OK;

  std::vector<bool> lost(moves.size(), false);
  for (size_t i = mapped; i-- > 0;) {
    const Move& move = moves[i];
    if (move.to == nullptr) continue;
    if (driver_->unmap(device_, move.to->address_of(move.to_slot), page_size_) != VMM_OK) {
      lost[i] = true;
      broken->slots.push_back({move.to, move.to_slot, move.page, true});
    }
  }
  for (size_t i = 0; i < moves.size(); ++i) {
    const Move& move = moves[i];
    if (move.from != nullptr && !move.alias) {
      Address at = move.from->address_of(move.from_slot);
      bool was = std::any_of(unmapped.begin(), unmapped.end(),
                             [&](const Span& span) { return at >= span.at && at < span.at + span.size; });
      bool mapped = false;
      if (was && (lost[i] || !map_back(move, &mapped))) {
        lost[i] = true;
        broken->slots.push_back({move.from, move.from_slot, move.page, mapped});
      }
    }
    // A page that is still at home under its old address is not lost, whatever hangs elsewhere.
    if (lost[i] && !move.alias) broken->pages.push_back(move.page);
  }
  return failure;
}

}  // namespace vmm
