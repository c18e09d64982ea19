#include "draft.h"

#include <algorithm>
#include <stdexcept>

namespace eyespan {

std::int32_t Draft::add(std::int32_t token, std::int32_t parent, double score,
                        std::int32_t origin) {
  tokens.push_back(token);
  parents.push_back(parent);
  depths.push_back(depth_of(parent) + 1);
  scores.push_back(score);
  origins.push_back(origin);
  return static_cast<std::int32_t>(tokens.size()) - 1;
}

void Draft::reserve(std::size_t size) {
  tokens.reserve(size);
  parents.reserve(size);
  depths.reserve(size);
  scores.reserve(size);
  origins.reserve(size);
}

void Draft::truncate(std::size_t size) {
  tokens.resize(size);
  parents.resize(size);
  depths.resize(size);
  scores.resize(size);
  origins.resize(size);
}

std::int32_t Draft::child(std::int32_t parent, std::int32_t token) const noexcept {
  for (std::size_t i = static_cast<std::size_t>(parent + 1); i < size(); ++i) {
    if (parents[i] == parent && tokens[i] == token) return static_cast<std::int32_t>(i);
  }
  return -1;
}

std::string Draft::check_integrity() const {
  if (parents.size() != size() || depths.size() != size() || scores.size() != size() ||
      origins.size() != size()) {
    return "the arrays of a draft differ in length";
  }
  if (size() >= kMaxPack) return "a draft leaves no room for the root";
  for (std::size_t i = 0; i < size(); ++i) {
    if (parents[i] < -1 || parents[i] >= static_cast<std::int32_t>(i)) {
      return "a parent does not come before its child";
    }
    if (depths[i] != depth_of(parents[i]) + 1) return "a depth is not its parent's plus one";
    if (!(scores[i] >= 0.0 && scores[i] <= score_of(parents[i]))) {
      return "a score is negative or above its parent's";
    }
    if (child(parents[i], tokens[i]) != static_cast<std::int32_t>(i)) return "siblings are equal";
  }
  return "";
}

DepthPriors::DepthPriors(std::span<const double> values) : values_(values.begin(), values.end()) {
  const bool valid = std::all_of(values.begin(), values.end(),
                                 [](double eta) { return eta > 0.0 && eta <= 1.0; });
  if (values.empty() || !valid) {
    throw std::invalid_argument("depth priors must be one or more values in (0, 1]");
  }
}

void insert_continuation(Draft& draft, const Continuation& continuation, const DepthPriors& eta,
                         const TokenSet& eos, int cap) {
  std::span<const std::int32_t> chain = continuation.tokens;
  const auto end = std::find_if(chain.begin(), chain.end(),
                                [&](std::int32_t token) { return eos.contains(token); });
  if (end != chain.end()) chain = chain.first(static_cast<std::size_t>(end - chain.begin()) + 1);
  if (cap >= 0) chain = chain.first(std::min(chain.size(), static_cast<std::size_t>(cap)));

  // The path of shared nodes; a node that makes room takes itself and what follows off that path.
  std::vector<std::int32_t> shared;
  for (std::int32_t node = -1; shared.size() < chain.size();) {
    node = draft.child(node, chain[shared.size()]);
    if (node < 0) break;
    shared.push_back(node);
  }
  if (cap >= 0) {
    while (draft.size() + chain.size() - shared.size() > static_cast<std::size_t>(cap)) {
      draft.truncate(draft.size() - 1);
      if (!shared.empty() && shared.back() >= static_cast<std::int32_t>(draft.size())) {
        shared.pop_back();
      }
    }
  }
  std::int32_t node = shared.empty() ? -1 : shared.back();
  for (std::size_t i = shared.size(); i < chain.size(); ++i) {
    const double step = eta.at(static_cast<int>(i) + 1) * continuation.mass;
    node = draft.add(chain[i], node, draft.score_of(node) * step, 1);
  }
}

}  // namespace eyespan
