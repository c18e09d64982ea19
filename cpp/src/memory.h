// The context-stratified memory of one request: which maps exist, how a prompt seeds them, how a
// verify pass refreshes them, and which rows answer a context (RECAP section 3.3, appendix A).
//
// Owns nothing: U usually outlives the request and is shared by requests of one scope, C and G are
// the request's own. Not thread-safe; whoever shares U serialises the calls.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "context.h"
#include "memory_rows.h"
#include "token_set.h"

namespace eyespan {

/// The target's best ids and logits at `count` positions, row-major, `width` a position.
struct TargetRows {
  std::span<const std::int32_t> ids;
  std::span<const float> logits;
  std::size_t count;
  std::size_t width;

  std::optional<Row> row(std::size_t i) const {
    return make_row(ids.subspan(i * width, width), logits.subspan(i * width, width));
  }
};

/// Rows that answer one context, most specific first.
struct Matches {
  std::array<RowView, Context::kMost> rows;
  int count = 0;

  std::span<const RowView> span() const noexcept {
    return {rows.data(), static_cast<std::size_t>(count)};
  }
};

class Memory {
 public:
  /// @param u, c, g maps of order 1, 2, 3; c and g may be null (the ablations "U" and "U+C").
  /// @param fourth a map of order 4 or null; with it rows can be chosen but not mixed (see fuse()).
  /// Throws std::invalid_argument for a missing u or a map of another order.
  Memory(RowMap* u, RowMap* c, RowMap* g, RowMap* fourth = nullptr);

  /// Prefill: the first occurrence of each text token in `prompt` among `positions` (ascending)
  /// writes U[token]; with `contexts` also the longer keys. O(positions).
  void seed(std::span<const std::int32_t> prompt, std::span<const std::int32_t> positions,
            const TargetRows& rows, const TokenSet& media, bool contexts);

  /// After a verify pass: every evaluated node writes its row under its own path context. The first
  /// occurrence of a key in packed order wins; what stood there before is replaced.
  /// @param history committed tokens before the root, oldest first; the last three count.
  /// @param tokens, parents the packed tree, root first (parents[0] == -1).
  /// Throws std::invalid_argument for a malformed tree. One softmax and up to 4 puts a node.
  void refresh(std::span<const std::int32_t> history, std::span<const std::int32_t> tokens,
               std::span<const std::int32_t> parents, const TargetRows& rows,
               const TokenSet& media);

  /// The available rows, longest key first. At most 4 finds.
  Matches find(const Context& context) const noexcept;

 private:
  void begin_pass() noexcept;
  void write(const Context& context, const Row& row, int highest_order);

  std::array<RowMap*, Context::kMost> maps_;  // by order - 1; null where the map does not exist
};

}  // namespace eyespan
