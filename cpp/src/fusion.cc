#include "fusion.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "id_block.h"

namespace eyespan {

namespace {

constexpr int kMostRows = 3;
constexpr double kEmpty = -1.0;

// Bit k: ids[k] == id, for k < count, a multiple of 8.
std::uint32_t places_of(std::int32_t id, const std::int32_t* ids, int count) {
  std::uint32_t places = 0;
  for (int k = 0; k < count; k += kRowSize) places |= places_in_block(ids + k, id) << k;
  return places;
}

Candidates as_it_is(const Predictions& best) {
  Candidates out;
  out.count = best.size();
  for (int i = 0; i < out.count; ++i) {
    out.ids[i] = best.ids[i];
    out.probs[i] = best.probs[i];
  }
  return out;
}

const Predictions& most_confident(std::span<const RowView> rows) {
  const auto best = std::max_element(
      rows.begin(), rows.end(),
      [](const RowView& a, const RowView& b) { return a.confidence < b.confidence; });
  return *best->best;
}

// The paper's w, equation 4.
std::array<double, kMostRows> weights(std::span<const RowView> rows, Fusion fusion,
                                      const Priors& priors) {
  const bool by_prior = fusion == Fusion::entropy || fusion == Fusion::fixed_prior;
  const bool by_confidence = fusion == Fusion::entropy || fusion == Fusion::no_prior;
  std::array<double, kMostRows> weight{};
  double total = 0.0;
  for (std::size_t j = 0; j < rows.size(); ++j) {
    weight[j] = (by_prior ? priors[j] : 1.0) *
                (by_confidence ? static_cast<double>(rows[j].confidence) : 1.0);
    total += weight[j];
  }
  for (double& w : weight) w /= total;
  return weight;
}

}  // namespace

Candidates fuse(std::span<const RowView> rows, Fusion fusion, const Priors& priors) {
  if (rows.empty()) return Candidates{};
  if (rows.size() == 1 || fusion == Fusion::backoff) return as_it_is(*rows.front().best);
  if (fusion == Fusion::gate) return as_it_is(most_confident(rows));

  if (rows.size() > kMostRows) throw std::invalid_argument("at most 3 rows can be mixed");
  const auto weight = weights(rows, fusion, priors);
  // Candidate i of row j stands at 8 j + i, which is the order of the walk. One that an earlier row
  // has seen adds its mass there and leaves its own place empty.
  std::array<std::int32_t, kMostRows * kRowSize> ids;
  std::array<double, kMostRows * kRowSize> mass;  // the paper's m, equation 5
  const int places = static_cast<int>(rows.size()) * kRowSize;
  for (int begin = 0; begin < places; begin += kRowSize) {
    const Predictions& row = *rows[begin / kRowSize].best;
    const double w = weight[begin / kRowSize];
    std::copy(row.ids.begin(), row.ids.end(), ids.begin() + begin);
    for (int i = 0; i < kRowSize; ++i) {
      const double part = w * static_cast<double>(row.probs[i]);
      const std::uint32_t earlier = places_of(row.ids[i], ids.data(), begin);
      mass[begin + i] = earlier || row.ids[i] < 0 ? kEmpty : part;
      if (earlier && row.ids[i] >= 0) mass[std::countr_zero(earlier)] += part;
    }
  }

  // Stable insertion into the 8 heaviest: an equal mass never passes one that was seen before it.
  std::array<int, kRowSize> best;
  Candidates out;
  for (int i = 0; i < places; ++i) {
    int place = out.count;
    while (place > 0 && mass[best[place - 1]] < mass[i]) --place;
    if (place == kRowSize || mass[i] == kEmpty) continue;
    if (out.count < kRowSize) ++out.count;
    for (int k = out.count - 1; k > place; --k) best[k] = best[k - 1];
    best[place] = i;
  }
  double total = 0.0;
  for (int i = 0; i < out.count; ++i) total += mass[best[i]];
  for (int i = 0; i < out.count; ++i) {
    out.ids[i] = ids[best[i]];
    out.probs[i] = mass[best[i]] / total;
  }
  return out;
}

}  // namespace eyespan
