#include "memory_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "checks.h"
#include "token_set.h"

namespace eyespan {

namespace {

constexpr std::size_t kFirstCapacity = 32;

std::size_t slots_for(std::size_t rows) { return std::bit_ceil(rows + rows / 3 + 1); }

int shift_for(std::size_t slots) { return 64 - std::countr_zero(slots); }

}  // namespace

std::optional<Row> make_row(std::span<const std::int32_t> ids, std::span<const float> logits) {
  if (ids.size() != logits.size()) throw std::invalid_argument("a row needs one logit for each id");
  Row row;
  row.ids.fill(-1);
  row.probs.fill(0.0f);
  const std::size_t limit = std::min<std::size_t>(ids.size(), kRowSize);
  std::size_t n = 0;
  double highest = -std::numeric_limits<double>::infinity();
  for (; n < limit && ids[n] != -1; ++n) {
    require_token(ids[n]);
    if (n > 0 && logits[n] > logits[n - 1]) {
      throw std::invalid_argument("the logits of a row must descend");
    }
    row.ids[n] = ids[n];
    highest = std::max(highest, static_cast<double>(logits[n]));
  }
  std::array<double, kRowSize> weights;
  double total = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    weights[i] = std::exp(static_cast<double>(logits[i]) - highest);
    total += weights[i];
  }
  if (n == 0 || !std::isfinite(total)) return std::nullopt;

  // H(P) = log(total) - sum p (logit - highest): one logarithm a row instead of eight.
  double entropy = std::log(total);
  for (std::size_t i = 0; i < n; ++i) {
    const double p = weights[i] / total;
    row.probs[i] = static_cast<float>(p);
    if (p > 0.0) entropy -= p * (static_cast<double>(logits[i]) - highest);
  }
  row.confidence = static_cast<float>(std::min(1.0, std::exp(-entropy)));
  return row;
}

std::string row_problem(const Row& row) {
  const int n = row.size();
  if (n == 0) return "a row holds no id";
  double total = 0.0;
  for (int i = 0; i < kRowSize; ++i) {
    const bool padded = i >= n;
    if (padded ? row.ids[i] != -1 : row.ids[i] >= kTokenLimit) {
      return "an id of a row is outside [0, 2^21), or -1 padding is not at its end";
    }
    if (!(row.probs[i] >= 0.0f && row.probs[i] <= 1.0f) || (padded && row.probs[i] != 0.0f)) {
      return "a probability of a row is outside [0, 1], or not 0 where the row is padded";
    }
    if (!padded && std::find(&row.ids[0], &row.ids[i], row.ids[i]) != &row.ids[i]) {
      return "an id stands twice in a row";
    }
    if (i > 0 && row.probs[i] > row.probs[i - 1]) return "the probabilities of a row rise";
    total += row.probs[i];
  }
  if (std::abs(total - 1.0) > 1e-5) return "the probabilities of a row do not sum to 1";
  if (!(row.confidence > 0.0f && row.confidence <= 1.0f)) return "a confidence is outside (0, 1]";
  return "";
}

RowMap::RowMap(int order, std::size_t max_rows) : order_(order), max_rows_(max_rows) {
  if (order < 1 || order > 3) throw std::invalid_argument("a row map's order must be 1, 2 or 3");
  if (max_rows < 1 || max_rows >= kNone) {
    throw std::invalid_argument("a row map's max_rows must lie in [1, 2^32 - 1)");
  }
  const std::size_t capacity = std::min(max_rows, kFirstCapacity);
  entries_.reserve(capacity);
  slots_.resize(slots_for(capacity));
  shift_ = shift_for(slots_.size());
}

std::size_t RowMap::bytes() const noexcept {
  return sizeof(*this) + entries_.capacity() * sizeof(Entry) + slots_.capacity() * sizeof(Slot);
}

void RowMap::find_many(std::span<const std::uint64_t> keys,
                       std::span<const Row*> rows) const noexcept {
  constexpr std::size_t kBlock = 32;
  for (std::size_t begin = 0; begin < keys.size(); begin += kBlock) {
    const auto block = keys.subspan(begin, std::min(kBlock, keys.size() - begin));
    for (const std::uint64_t key : block) __builtin_prefetch(&slots_[home(hash(key))]);
    for (const std::uint64_t key : block) {
      const Slot& slot = slots_[home(hash(key))];
      if (slot.epoch != epoch_) continue;
      const auto* entry = reinterpret_cast<const char*>(&entries_[slot.entry]);
      __builtin_prefetch(entry);
      __builtin_prefetch(entry + 64);
    }
    for (std::size_t i = 0; i < block.size(); ++i) rows[begin + i] = find(block[i]);
  }
}

void RowMap::require_key(std::uint64_t key) const {
  if (key >> (kTokenBits * order_)) {
    throw std::invalid_argument("a key of order " + std::to_string(order_) + " has at most " +
                                std::to_string(kTokenBits * order_) + " bits");
  }
}

void RowMap::begin_pass() noexcept {
  if (++pass_ == 0) {  // after 2^32 passes the stamps start over
    for (Entry& entry : entries_) entry.pass = 0;
    pass_ = 1;
  }
}

void RowMap::put_first(std::uint64_t key, const Row& row) {
  require_key(key);
  const std::uint64_t hashed = hash(key);
  std::uint32_t place = find_entry(key, hashed);
  if (place != kNone) {
    if (entries_[place].pass == pass_) return;
    unlink(place);
  } else if (entries_.size() == max_rows_) {
    place = oldest_;
    vacate(place);
    unlink(place);
    occupy(hashed, place);
  } else {
    if (entries_.size() == entries_.capacity()) grow();
    place = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
    occupy(hashed, place);
  }
  Entry& entry = entries_[place];
  entry.key = key;
  entry.row = row;
  entry.pass = pass_;
  link_newest(place);
  EYESPAN_VERIFY(*this);
}

void RowMap::clear() noexcept {
  entries_.clear();
  oldest_ = newest_ = kNone;
  if (++epoch_ == 0) {  // after 2^16 clears the stamps start over
    std::fill(slots_.begin(), slots_.end(), Slot{});
    epoch_ = 1;
  }
}

void RowMap::grow() {
  const std::size_t capacity = std::min(max_rows_, entries_.capacity() * 2);
  entries_.reserve(capacity);
  const std::size_t wanted = slots_for(capacity);
  if (wanted == slots_.size()) return;
  slots_ = std::vector<Slot>(wanted);
  shift_ = shift_for(wanted);
  epoch_ = 1;
  for (std::uint32_t i = 0; i < entries_.size(); ++i) occupy(hash(entries_[i].key), i);
}

void RowMap::occupy(std::uint64_t hashed, std::uint32_t entry) noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = home(hashed);
  while (slots_[i].epoch == epoch_) i = (i + 1) & mask;
  slots_[i] = Slot{entry, epoch_, tag(hashed)};
}

// Linear probing without tombstones: the entries behind the hole move up as far as their homes let
// them, so that probes never lengthen with age.
void RowMap::vacate(std::uint32_t entry) noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = home(hash(entries_[entry].key));
  while (slots_[hole].entry != entry) hole = (hole + 1) & mask;
  for (std::size_t i = (hole + 1) & mask; slots_[i].epoch == epoch_; i = (i + 1) & mask) {
    const std::size_t wants = home(hash(entries_[slots_[i].entry].key));
    if (((i - wants) & mask) >= ((i - hole) & mask)) {
      slots_[hole] = slots_[i];
      hole = i;
    }
  }
  slots_[hole] = Slot{};
}

void RowMap::unlink(std::uint32_t place) noexcept {
  const Entry& entry = entries_[place];
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
}

void RowMap::link_newest(std::uint32_t place) noexcept {
  entries_[place].older = newest_;
  entries_[place].newer = kNone;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = place;
  newest_ = place;
}

std::vector<RowMap::Saved> RowMap::export_rows() const {
  std::vector<Saved> rows;
  rows.reserve(size());
  for (std::uint32_t i = oldest_; i != kNone; i = entries_[i].newer) {
    rows.push_back(Saved{entries_[i].key, entries_[i].row});
  }
  return rows;
}

void RowMap::import_rows(std::span<const Saved> rows) {
  RowMap fresh(order_, max_rows_);
  fresh.begin_pass();
  for (const Saved& saved : rows) {
    fresh.require_key(saved.key);
    const std::string problem = row_problem(saved.row);
    if (!problem.empty()) throw std::invalid_argument("row map cannot be imported: " + problem);
    if (fresh.find(saved.key)) {
      throw std::invalid_argument("row map cannot be imported: a key stands twice");
    }
    fresh.put_first(saved.key, saved.row);
  }
  *this = std::move(fresh);
}

std::string RowMap::check_integrity() const {
  if (size() > max_rows_) return "more rows than max_rows";
  if (size() + size() / 3 >= slots_.size()) return "the slot table is more than 3/4 full";
  std::size_t live = 0;
  for (const Slot& slot : slots_) {
    if (slot.epoch != epoch_) continue;
    ++live;
    if (slot.entry >= size()) return "a slot points past the rows";
    if (slot.tag != tag(hash(entries_[slot.entry].key))) return "a slot has another key's tag";
  }
  if (live != size()) return "slots and rows differ in number";
  std::size_t listed = 0;
  std::uint32_t older = kNone;
  for (std::uint32_t i = oldest_; i != kNone; older = i, i = entries_[i].newer) {
    if (++listed > size()) return "the order of writing runs in a circle";
    if (i >= size()) return "the order of writing points past the rows";
    const Entry& entry = entries_[i];
    if (entry.older != older) return "the order of writing differs forwards and backwards";
    if (entry.key >> (kTokenBits * order_)) return "a key has more tokens than the map's order";
    if (find_entry(entry.key, hash(entry.key)) != i) return "a row cannot be found by its key";
    if (entry.pass > pass_) return "a row was written by a pass of the future";
    const std::string problem = row_problem(entry.row);
    if (!problem.empty()) return problem;
  }
  if (newest_ != older) return "the newest row is not the last written";
  if (listed != size()) return "the order of writing misses rows";
  return "";
}

}  // namespace eyespan
