// Prediction rows and the map that keeps them (RECAP section 3.3).
//
// A row is what the target thought would come next at one evaluated position: its 8 best ids, the
// softmax over just these 8 logits, and how concentrated it is. A RowMap files rows under the last
// 1, 2, 3 or 4 text tokens before the prediction: the paper's U, C and G, and STAND's longest.
//
// Invariant of RowMap: it holds the `max_rows` most recently written keys, one row each, and knows
// their exact order of writing. A find() costs two cache lines, the slot and the row, and one where
// there is no row; a put() two more for the order of writing, amortised over geometric growth;
// clear() is O(1). About 108 bytes a row when full.
// Not thread-safe: one writer or many readers at a time; the caller serialises.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "token_set.h"

namespace eyespan {

inline constexpr int kRowSize = 8;  // the paper's K

/// Exactly one cache line.
struct alignas(64) Predictions {
  std::array<std::int32_t, kRowSize> ids;  // descending probability, -1 pads a short row
  std::array<float, kRowSize> probs;       // the paper's P, 0 where padded

  int size() const noexcept {
    int n = 0;
    while (n < kRowSize && ids[n] >= 0) ++n;
    return n;
  }
};

struct Row {
  Predictions best;
  float confidence;  // exp(-H(P)), in [1/8, 1] for a full row
};

/// A row where it is kept; valid until the next write.
struct RowView {
  const Predictions* best = nullptr;
  float confidence = 0.0f;

  explicit operator bool() const noexcept { return best != nullptr; }
};

/// Builds a row from the target's best ids and logits, descending, ties by the lower id; only the
/// first 8 count, an id of -1 ends the row. Computed in double, stored as float.
///
/// Returns nothing when there is no id or the logits are not finite: such a row predicts nothing.
/// Throws std::invalid_argument for an id outside [-1, 2^21) or logits that rise.
std::optional<Row> make_row(std::span<const std::int32_t> ids, std::span<const float> logits);

/// The first rule that a row breaks, or "".
std::string row_problem(const Predictions& best, float confidence);

class RowMap {
 public:
  /// @param order tokens in a key, 1 to 4.
  /// @param max_rows most rows ever held, below 2^24; the least recently written one makes room.
  RowMap(int order, std::size_t max_rows);

  int order() const noexcept { return order_; }
  std::size_t size() const noexcept { return rows_.size(); }
  std::size_t max_rows() const noexcept { return max_rows_; }
  std::size_t bytes() const noexcept;

  /// The row under `key`, if any.
  RowView find(std::uint64_t key) const noexcept {
    const Slot& slot = slots_[probe(key)];
    return is_live(slot) ? RowView{&rows_[slot.place], slot.confidence} : RowView{};
  }

  /// rows[i] = find(keys[i]). The keys' memory is fetched together, block by block, so that many
  /// look-ups wait for it once.
  void find_many(std::span<const std::uint64_t> keys, std::span<RowView> rows) const noexcept;

  /// Opens a pass: one prompt or one verify forward, in which the first write of a key wins.
  void begin_pass() noexcept;

  /// Writes `row` under `key`, unless this pass has already done so. Throws std::invalid_argument
  /// for a key with more tokens than the map's order.
  void put_first(std::uint64_t key, const Row& row);

  /// A pass of a single write: always replaces.
  void put(std::uint64_t key, const Row& row) {
    begin_pass();
    put_first(key, row);
  }

  /// Forgets all rows in O(1); keeps the allocation.
  void clear() noexcept;

  struct Saved {
    std::uint64_t key;
    Row row;
  };
  /// All rows, least recently written first.
  std::vector<Saved> export_rows() const;
  /// Replaces the content. All or nothing: throws std::invalid_argument for a key or row that
  /// breaks a rule, and then the map is as it was.
  void import_rows(std::span<const Saved> rows);

  /// The first rule that is broken, or "". O(size).
  std::string check_integrity() const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  // Empty unless its epoch is the map's: that is what makes clear() O(1).
  struct Slot {
    std::uint64_t key;
    float confidence;
    std::uint32_t place : 24;  // of the row
    std::uint32_t epoch : 8;
  };
  // What only writes need, apart from the rows so that neighbours share cache lines.
  struct Written {
    std::uint32_t slot;          // where the key is
    std::uint32_t older, newer;  // doubly linked in order of writing
    std::uint32_t pass;          // the pass that wrote it
  };

  bool is_live(const Slot& slot) const noexcept { return slot.epoch == epoch_; }

  // Multiples of the golden ratio: dense ids, which U is full of, spread evenly and hardly collide.
  std::size_t home(std::uint64_t key) const noexcept {
    return key * 0x9E3779B97F4A7C15u >> shift_;
  }

  // The slot of `key`, or the empty one where it would go.
  std::size_t probe(std::uint64_t key) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = home(key);
    while (is_live(slots_[i]) && slots_[i].key != key) i = (i + 1) & mask;
    return i;
  }

  // Longer keys are hashes of three tokens' bits.
  int key_bits() const noexcept { return kTokenBits * (order_ < 3 ? order_ : 3); }
  void require_key(std::uint64_t key) const;
  void grow();
  void forget_oldest() noexcept;
  void vacate(std::size_t slot) noexcept;
  void unlink(std::uint32_t place) noexcept;
  void link_newest(std::uint32_t place) noexcept;

  int order_;
  int shift_;
  std::size_t max_rows_;
  std::uint8_t epoch_ = 1;
  std::uint32_t pass_ = 0;
  std::uint32_t oldest_ = kNone, newest_ = kNone;
  std::vector<Predictions> rows_;  // live ones only: eviction reuses the oldest one's place
  std::vector<Written> written_;   // one a row
  std::vector<Slot> slots_;        // a power of two, at most 3/4 full, linear probing
};

}  // namespace eyespan
