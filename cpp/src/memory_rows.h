// Prediction rows and the map that keeps them (RECAP section 3.3).
//
// A row is what the target thought would come next at one evaluated position: its 8 best ids, the
// softmax over just these 8 logits, and how concentrated it is. A RowMap files rows under the last
// 1, 2 or 3 text tokens before the prediction: the paper's U, C and G.
//
// Invariant of RowMap: it holds the `max_rows` most recently written keys, one row each, and knows
// their exact order of writing. A find() costs one or two cache lines of the slot table and the
// row itself; a put() the same plus four list links, amortised over geometric growth; clear() O(1).
// Not thread-safe: one writer or many readers at a time; the caller serialises.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace eyespan {

inline constexpr int kRowSize = 8;  // the paper's K

struct Row {
  float confidence;                        // exp(-H(P)), in [1/8, 1] for a full row
  std::array<std::int32_t, kRowSize> ids;  // descending probability, -1 pads a short row
  std::array<float, kRowSize> probs;       // the paper's P, 0 where padded

  int size() const noexcept {
    int n = 0;
    while (n < kRowSize && ids[n] >= 0) ++n;
    return n;
  }
};

/// Builds a row from the target's best ids and logits, descending, ties by the lower id; only the
/// first 8 count, an id of -1 ends the row. Computed in double, stored as float.
///
/// Returns nothing when there is no id or the logits are not finite: such a row predicts nothing.
/// Throws std::invalid_argument for an id outside [-1, 2^21) or logits that rise.
std::optional<Row> make_row(std::span<const std::int32_t> ids, std::span<const float> logits);

/// The first rule that `row` breaks, or "".
std::string row_problem(const Row& row);

class RowMap {
 public:
  /// @param order tokens in a key, 1 to 3.
  /// @param max_rows most rows ever held; the least recently written one makes room.
  RowMap(int order, std::size_t max_rows);

  int order() const noexcept { return order_; }
  std::size_t size() const noexcept { return entries_.size(); }
  std::size_t max_rows() const noexcept { return max_rows_; }
  std::size_t bytes() const noexcept;

  /// The row under `key`, or nullptr. Valid until the next write.
  const Row* find(std::uint64_t key) const noexcept {
    const std::uint32_t entry = find_entry(key, hash(key));
    return entry == kNone ? nullptr : &entries_[entry].row;
  }

  /// rows[i] = find(keys[i]). The keys' memory is fetched together, block by block, so that many
  /// look-ups wait for it once.
  void find_many(std::span<const std::uint64_t> keys, std::span<const Row*> rows) const noexcept;

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

  struct Entry {
    std::uint64_t key;
    Row row;
    std::uint32_t pass;          // the pass that wrote it
    std::uint32_t older, newer;  // doubly linked in order of writing
  };
  // A slot is empty unless its epoch is the map's: that is what makes clear() O(1). The tag, 16
  // bits of the hash, keeps probes from touching the rows of other keys.
  struct Slot {
    std::uint32_t entry;
    std::uint16_t epoch, tag;
  };

  // Multiples of the golden ratio: dense ids, which U is full of, spread evenly and hardly collide,
  // so that a look-up is two predictable loads. Home and tag are bits of the upper half, which every
  // bit of a key reaches.
  static std::uint64_t hash(std::uint64_t key) noexcept { return key * 0x9E3779B97F4A7C15u; }
  std::size_t home(std::uint64_t hashed) const noexcept { return hashed >> shift_; }
  static std::uint16_t tag(std::uint64_t hashed) noexcept {
    return static_cast<std::uint16_t>(hashed >> 24);
  }

  std::uint32_t find_entry(std::uint64_t key, std::uint64_t hashed) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = home(hashed);; i = (i + 1) & mask) {
      const Slot& slot = slots_[i];
      if (slot.epoch != epoch_) return kNone;
      if (slot.tag == tag(hashed) && entries_[slot.entry].key == key) return slot.entry;
    }
  }

  void require_key(std::uint64_t key) const;
  void grow();
  void occupy(std::uint64_t hashed, std::uint32_t entry) noexcept;
  void vacate(std::uint32_t entry) noexcept;
  void unlink(std::uint32_t entry) noexcept;
  void link_newest(std::uint32_t entry) noexcept;

  int order_;
  int shift_;
  std::size_t max_rows_;
  std::uint16_t epoch_ = 1;
  std::uint32_t pass_ = 0;
  std::uint32_t oldest_ = kNone, newest_ = kNone;
  std::vector<Entry> entries_;  // live ones only: eviction reuses the oldest one's place
  std::vector<Slot> slots_;     // a power of two, at most 3/4 full, linear probing
};

}  // namespace eyespan
