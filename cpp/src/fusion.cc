#include "fusion.h"

#include <algorithm>

namespace eyespan {

namespace {

constexpr int kMostRows = 3;

Candidates as_it_is(const Row& row) {
  Candidates out;
  out.count = row.size();
  for (int i = 0; i < out.count; ++i) {
    out.ids[i] = row.ids[i];
    out.probs[i] = row.probs[i];
  }
  return out;
}

const Row& most_confident(std::span<const Row* const> rows) {
  return **std::max_element(rows.begin(), rows.end(), [](const Row* a, const Row* b) {
    return a->confidence < b->confidence;
  });
}

// The paper's w, equation 4.
std::array<double, kMostRows> weights(std::span<const Row* const> rows, Fusion fusion,
                                      const Priors& priors) {
  const bool by_prior = fusion == Fusion::entropy || fusion == Fusion::fixed_prior;
  const bool by_confidence = fusion == Fusion::entropy || fusion == Fusion::no_prior;
  std::array<double, kMostRows> weight{};
  double total = 0.0;
  for (std::size_t j = 0; j < rows.size(); ++j) {
    weight[j] = (by_prior ? priors[j] : 1.0) *
                (by_confidence ? static_cast<double>(rows[j]->confidence) : 1.0);
    total += weight[j];
  }
  for (double& w : weight) w /= total;
  return weight;
}

}  // namespace

Candidates fuse(std::span<const Row* const> rows, Fusion fusion, const Priors& priors) {
  if (rows.empty()) return Candidates{};
  if (rows.size() == 1 || fusion == Fusion::backoff) return as_it_is(*rows.front());
  if (fusion == Fusion::gate) return as_it_is(most_confident(rows));

  const auto weight = weights(rows, fusion, priors);
  std::array<std::int32_t, kMostRows * kRowSize> ids;
  std::array<double, kMostRows * kRowSize> mass;  // the paper's m, equation 5
  int seen = 0;
  for (std::size_t j = 0; j < rows.size(); ++j) {
    const Row& row = *rows[j];
    const int earlier = seen;  // ids of one row differ, so only earlier rows can share one
    for (int i = 0; i < kRowSize && row.ids[i] >= 0; ++i) {
      const double part = weight[j] * static_cast<double>(row.probs[i]);
      const auto place = std::find(ids.begin(), ids.begin() + earlier, row.ids[i]) - ids.begin();
      if (place < earlier) {
        mass[place] += part;
      } else {
        ids[seen] = row.ids[i];
        mass[seen++] = part;
      }
    }
  }

  // Stable insertion into the 8 heaviest: an equal mass never passes one that was seen before it.
  Candidates out;
  double total = 0.0;
  for (int i = 0; i < seen; ++i) {
    int place = out.count;
    while (place > 0 && out.probs[place - 1] < mass[i]) --place;
    if (place == kRowSize) continue;
    if (out.count < kRowSize) ++out.count;
    for (int k = out.count - 1; k > place; --k) {
      out.ids[k] = out.ids[k - 1];
      out.probs[k] = out.probs[k - 1];
    }
    out.ids[place] = ids[i];
    out.probs[place] = mass[i];
  }
  for (int i = 0; i < out.count; ++i) total += out.probs[i];
  for (int i = 0; i < out.count; ++i) out.probs[i] /= total;
  return out;
}

}  // namespace eyespan
