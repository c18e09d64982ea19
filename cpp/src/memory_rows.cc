#include "memory_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "checks.h"
#include "token_set.h"

namespace eyespan {

namespace {

constexpr std::size_t kFirstCapacity = 32;
constexpr std::size_t kPlaces = std::size_t{1} << 24;

std::size_t slots_for(std::size_t rows) { return std::bit_ceil(rows + rows / 3 + 1); }

int shift_for(std::size_t slots) { return 64 - std::countr_zero(slots); }

}  // namespace

std::optional<Row> make_row(std::span<const std::int32_t> ids, std::span<const float> logits) {
  if (ids.size() != logits.size()) throw std::invalid_argument("a row needs one logit for each id");
  Row row;
  row.best.ids.fill(-1);
  row.best.probs.fill(0.0f);
  const std::size_t limit = std::min<std::size_t>(ids.size(), kRowSize);
  std::size_t n = 0;
  double highest = -std::numeric_limits<double>::infinity();
  for (; n < limit && ids[n] != -1; ++n) {
    require_token(ids[n]);
    if (n > 0 && logits[n] > logits[n - 1]) {
      throw std::invalid_argument("the logits of a row must descend");
    }
    row.best.ids[n] = ids[n];
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
    row.best.probs[i] = static_cast<float>(p);
    if (p > 0.0) entropy -= p * (static_cast<double>(logits[i]) - highest);
  }
  row.confidence = static_cast<float>(std::min(1.0, std::exp(-entropy)));
  return row;
}

std::string row_problem(const Predictions& best, float confidence) {
  const auto& [ids, probs] = best;
  const int n = best.size();
  if (n == 0) return "a row holds no id";
  double total = 0.0;
  for (int i = 0; i < kRowSize; ++i) {
    const bool padded = i >= n;
    if (padded ? ids[i] != -1 : ids[i] >= kTokenLimit) {
      return "an id of a row is outside [0, 2^21), or -1 padding is not at its end";
    }
    if (!(probs[i] >= 0.0f && probs[i] <= 1.0f) || (padded && probs[i] != 0.0f)) {
      return "a probability of a row is outside [0, 1], or not 0 where the row is padded";
    }
    if (!padded && std::find(&ids[0], &ids[i], ids[i]) != &ids[i]) {
      return "an id stands twice in a row";
    }
    if (i > 0 && probs[i] > probs[i - 1]) return "the probabilities of a row rise";
    total += probs[i];
  }
  if (std::abs(total - 1.0) > 1e-5) return "the probabilities of a row do not sum to 1";
  if (!(confidence > 0.0f && confidence <= 1.0f)) return "a confidence is outside (0, 1]";
  return "";
}

RowMap::RowMap(int order, std::size_t max_rows) : order_(order), max_rows_(max_rows) {
  if (order < 1 || order > 4) throw std::invalid_argument("a row map's order must lie in [1, 4]");
  if (max_rows < 1 || max_rows >= kPlaces) {
    throw std::invalid_argument("a row map's max_rows must lie in [1, 2^24)");
  }
  const std::size_t capacity = std::min(max_rows, kFirstCapacity);
  rows_.reserve(capacity);
  written_.reserve(capacity);
  slots_.resize(slots_for(capacity));
  shift_ = shift_for(slots_.size());
}

std::size_t RowMap::bytes() const noexcept {
  return sizeof(*this) + rows_.capacity() * sizeof(Predictions) +
         written_.capacity() * sizeof(Written) + slots_.capacity() * sizeof(Slot);
}

void RowMap::find_many(std::span<const std::uint64_t> keys,
                       std::span<RowView> rows) const noexcept {
  constexpr std::size_t kBlock = 32;
  for (std::size_t begin = 0; begin < keys.size(); begin += kBlock) {
    const auto block = keys.subspan(begin, std::min(kBlock, keys.size() - begin));
    for (const std::uint64_t key : block) __builtin_prefetch(&slots_[home(key)]);
    for (std::size_t i = 0; i < block.size(); ++i) {
      rows[begin + i] = find(block[i]);
      __builtin_prefetch(rows[begin + i].best);
    }
  }
}

void RowMap::require_key(std::uint64_t key) const {
  if (key >> key_bits()) {
    throw std::invalid_argument("a key of order " + std::to_string(order_) + " has at most " +
                                std::to_string(key_bits()) + " bits");
  }
}

void RowMap::begin_pass() noexcept {
  if (++pass_ == 0) {  // after 2^32 passes the stamps start over
    for (Written& written : written_) written.pass = 0;
    pass_ = 1;
  }
}

void RowMap::put_first(std::uint64_t key, const Row& row) {
  require_key(key);
  std::size_t at = probe(key);
  std::uint32_t place = slots_[at].place;
  if (is_live(slots_[at])) {
    if (written_[place].pass == pass_) return;
    unlink(place);
  } else if (size() == max_rows_) {
    place = oldest_;
    forget_oldest();
    at = probe(key);
  } else {
    if (size() == rows_.capacity()) {
      grow();
      at = probe(key);
    }
    place = static_cast<std::uint32_t>(size());
    rows_.emplace_back();
    written_.emplace_back();
  }
  slots_[at] = Slot{key, row.confidence, place, epoch_};
  rows_[place] = row.best;
  written_[place].slot = static_cast<std::uint32_t>(at);
  written_[place].pass = pass_;
  link_newest(place);
  EYESPAN_VERIFY(*this);
}

void RowMap::clear() noexcept {
  rows_.clear();
  written_.clear();
  oldest_ = newest_ = kNone;
  if (++epoch_ == 0) {  // after 2^8 clears the stamps start over
    std::fill(slots_.begin(), slots_.end(), Slot{});
    epoch_ = 1;
  }
}

void RowMap::grow() {
  const std::size_t capacity = std::min(max_rows_, rows_.capacity() * 2);
  rows_.reserve(capacity);
  written_.reserve(capacity);
  const std::size_t wanted = slots_for(capacity);
  if (wanted == slots_.size()) return;
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(wanted));
  shift_ = shift_for(wanted);
  for (const Written& written : written_) {
    const Slot& slot = old[written.slot];
    slots_[probe(slot.key)] = slot;
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (is_live(slots_[i])) written_[slots_[i].place].slot = static_cast<std::uint32_t>(i);
  }
}

void RowMap::forget_oldest() noexcept {
  const std::uint32_t place = oldest_;
  unlink(place);
  vacate(written_[place].slot);
}

// Linear probing without tombstones: the entries behind the hole move up as far as their homes let
// them, so that probes never lengthen with age.
void RowMap::vacate(std::size_t hole) noexcept {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = (hole + 1) & mask; is_live(slots_[i]); i = (i + 1) & mask) {
    if (((i - home(slots_[i].key)) & mask) >= ((i - hole) & mask)) {
      slots_[hole] = slots_[i];
      written_[slots_[hole].place].slot = static_cast<std::uint32_t>(hole);
      hole = i;
    }
  }
  slots_[hole] = Slot{};
}

void RowMap::unlink(std::uint32_t place) noexcept {
  const Written& written = written_[place];
  (written.older == kNone ? oldest_ : written_[written.older].newer) = written.newer;
  (written.newer == kNone ? newest_ : written_[written.newer].older) = written.older;
}

void RowMap::link_newest(std::uint32_t place) noexcept {
  written_[place].older = newest_;
  written_[place].newer = kNone;
  (newest_ == kNone ? oldest_ : written_[newest_].newer) = place;
  newest_ = place;
}

std::vector<RowMap::Saved> RowMap::export_rows() const {
  std::vector<Saved> rows;
  rows.reserve(size());
  for (std::uint32_t i = oldest_; i != kNone; i = written_[i].newer) {
    const Slot& slot = slots_[written_[i].slot];
    rows.push_back(Saved{slot.key, Row{rows_[i], slot.confidence}});
  }
  return rows;
}

void RowMap::import_rows(std::span<const Saved> rows) {
  RowMap fresh(order_, max_rows_);
  fresh.begin_pass();
  for (const Saved& saved : rows) {
    fresh.require_key(saved.key);
    const std::string problem = row_problem(saved.row.best, saved.row.confidence);
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
  if (written_.size() != size()) return "rows and their order of writing differ in number";
  if (size() + size() / 3 >= slots_.size()) return "the slot table is more than 3/4 full";
  std::size_t live = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (!is_live(slot)) continue;
    ++live;
    if (slot.place >= size()) return "a slot points past the rows";
    if (written_[slot.place].slot != i) return "a row does not know its slot";
    if (slot.key >> key_bits()) return "a key has more tokens than the map's order";
    if (probe(slot.key) != i) return "a row cannot be found by its key";
    const std::string problem = row_problem(rows_[slot.place], slot.confidence);
    if (!problem.empty()) return problem;
  }
  if (live != size()) return "slots and rows differ in number";
  std::size_t listed = 0;
  std::uint32_t older = kNone;
  for (std::uint32_t i = oldest_; i != kNone; older = i, i = written_[i].newer) {
    if (++listed > size()) return "the order of writing runs in a circle";
    if (i >= size()) return "the order of writing points past the rows";
    if (written_[i].older != older) return "the order of writing differs forwards and backwards";
    if (written_[i].pass > pass_) return "a row was written by a pass of the future";
  }
  if (newest_ != older) return "the newest row is not the last written";
  if (listed != size()) return "the order of writing misses rows";
  return "";
}

}  // namespace eyespan
