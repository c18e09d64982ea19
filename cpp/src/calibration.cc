#include "calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace eyespan {

namespace {

constexpr std::int32_t kPerSource = Calibration::kDepths * Calibration::kBins;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

/// The first source's cell of a depth and a score, in half octaves below 1.
std::int32_t cell_of(std::int32_t depth, float score) {
  const double halves = -2.0 * std::log2(std::max(static_cast<double>(score), 1e-6));
  const double bin = std::min(halves, Calibration::kBins - 1.0);
  return std::min(depth - 1, Calibration::kDepths - 1) * Calibration::kBins +
         static_cast<std::int32_t>(bin);
}

float as_chance(float score) {
  require(!std::isnan(score), "scores that are no numbers");
  return std::clamp(score, 0.0F, 1.0F);
}

/// Nodes worth sending, likeliest first; stable, so that parents stand before their children.
std::vector<std::int32_t> likeliest(std::span<const double> chances, std::size_t cap) {
  std::vector<std::int32_t> order(chances.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return chances[a] > chances[b]; });
  if (order.size() > cap) order.resize(cap);
  while (!order.empty() && !(chances[order.back()] > 0.0)) order.pop_back();
  return order;
}

}  // namespace

Calibration::Calibration(int sources) : sources_(sources) {
  require(sources >= 1, "a calibration needs at least one source");
  offered_.assign(static_cast<std::size_t>(sources) * kPerSource, 0.0);
  accepted_ = offered_;
}

Weighing Calibration::weigh(std::span<const std::int32_t> parents, std::span<const float> scores,
                            std::span<const std::int32_t> origins) const {
  const std::size_t n = parents.size();
  require((scores.empty() || scores.size() == n) && (origins.empty() || origins.size() == n),
          "scores and origins need one entry a node");
  Weighing out{std::vector<std::int32_t>(n), std::vector<std::int32_t>(n), std::vector<double>(n)};
  for (std::size_t at = 0; at < n; ++at) {
    const std::int32_t parent = parents[at];
    require(parent >= -1 && parent < static_cast<std::int32_t>(at),
            "a parent stands before its children");
    const std::int32_t depth = parent < 0 ? 1 : out.depths[parent] + 1;
    const float score = scores.empty() ? kUnscored : as_chance(scores[at]);
    std::int32_t cell = cell_of(depth, score);
    if (!origins.empty()) {
      require(origins[at] >= 0, "an origin is not below 0");
      cell += std::min(origins[at], sources_ - 1) * kPerSource;
    }
    const double own = believed(cell, score);
    out.depths[at] = depth;
    out.cells[at] = cell;
    out.chances[at] = parent < 0 ? own : std::min(own, out.chances[parent]);
  }
  return out;
}

std::vector<double> Calibration::chances(std::span<const float> scores, int depth) const {
  require(depth >= 1, "depths count from 1");
  std::vector<double> out;
  out.reserve(scores.size());
  for (const float score : scores) {
    const float chance = as_chance(score);
    out.push_back(believed(cell_of(depth, chance), chance));
  }
  return out;
}

double Calibration::believed(std::int32_t cell, float score) const {
  return (accepted_[cell] + kPriorWeight * score) / (offered_[cell] + kPriorWeight);
}

void Calibration::learn(std::span<const std::int32_t> tokens,
                        std::span<const std::int32_t> parents,
                        std::span<const std::int32_t> depths, std::span<const std::int32_t> cells,
                        std::span<const std::int32_t> text) {
  const std::size_t n = tokens.size();
  require(parents.size() == n && depths.size() == n && cells.size() == n,
          "a proposal's arrays need one entry a node");
  for (const std::int32_t cell : cells) {
    require(cell >= 0 && cell < static_cast<std::int32_t>(offered_.size()), "an unknown cell");
  }
  const auto length = static_cast<std::int32_t>(text.size());
  std::vector<std::int32_t> seen;
  for (std::size_t at = 0; at < n; ++at) {
    if (depths[at] <= length) seen.push_back(cells[at]);
  }
  std::vector<std::int32_t> touched = seen;  // a cell fades once a round, however many nodes it has
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (const std::int32_t cell : touched) {
    offered_[cell] *= kDecay;
    accepted_[cell] *= kDecay;
  }
  for (const std::int32_t cell : seen) offered_[cell] += 1.0;
  std::int32_t parent = -1;
  for (const std::int32_t token : text) {
    std::size_t at = 0;
    while (at < n && !(parents[at] == parent && tokens[at] == token)) ++at;
    if (at == n) break;
    accepted_[cells[at]] += 1.0;
    parent = static_cast<std::int32_t>(at);
  }
}

void Calibration::restore(std::span<const double> offered, std::span<const double> accepted) {
  require(offered.size() == cells() && accepted.size() == cells(), "counts of another shape");
  for (std::size_t cell = 0; cell < cells(); ++cell) {
    require(std::isfinite(offered[cell]) && accepted[cell] >= 0.0 &&
                accepted[cell] <= offered[cell],
            "counts are finite, and no more came true than was offered");
  }
  offered_.assign(offered.begin(), offered.end());
  accepted_.assign(accepted.begin(), accepted.end());
}

std::vector<std::vector<std::int32_t>> best_cuts(const std::vector<std::span<const double>>& chances,
                                                 std::span<const double> costs,
                                                 const CutRules& rules) {
  require(!costs.empty(), "a cut needs the cost of a plain step");
  std::vector<std::vector<std::int32_t>> orders;
  std::size_t widest = 0;
  for (const auto& row : chances) {
    orders.push_back(likeliest(row, rules.cap));
    widest = std::max(widest, orders.back().size());
  }
  require(costs.size() > widest, "a cut needs the cost of every width");
  const auto rows = static_cast<double>(chances.size());
  double tokens = 0.0, best = rules.margin * rows;
  std::size_t width = 0;
  for (std::size_t nodes = 1; nodes <= widest; ++nodes) {
    for (std::size_t row = 0; row < orders.size(); ++row) {
      if (nodes <= orders[row].size()) tokens += chances[row][orders[row][nodes - 1]] + rules.worth;
    }
    const double net = tokens - rules.price * (costs[nodes] - costs[0]);
    if (net > best) {
      best = net;
      width = nodes;
    }
  }
  for (auto& order : orders) {
    if (order.size() > width) order.resize(width);
  }
  return orders;
}

}  // namespace eyespan
