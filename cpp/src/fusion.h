// Entropy-confidence-weighted fusion of the rows that answer one context (RECAP section 3.4,
// equations 4 to 6) and the rules it is compared with (appendix I).
//
// Pure functions on at most 3 rows of 8: a union of at most 24 candidates, a few hundred
// nanoseconds, no allocation. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "memory_rows.h"

namespace eyespan {

enum class Fusion {
  entropy,      // weight = prior x confidence: the paper's rule
  fixed_prior,  // confidence taken as 1
  no_prior,     // prior taken as 1
  uniform,      // both taken as 1
  gate,         // only the most confident row, ties to the more specific
  backoff,      // only the most specific row
};

using Priors = std::array<double, 3>;  // the paper's alpha, by rank among the available rows

/// What may come next, by descending mass: the paper's q.
struct Candidates {
  std::array<std::int32_t, kRowSize> ids;
  std::array<double, kRowSize> probs;
  int count = 0;
};

/// @param rows the available rows, most specific first; more than 3 can be chosen from, but not mixed
/// (std::invalid_argument). One row is used as it is; of more,
/// the mixture's 8 heaviest candidates are kept and renormalised. Ties stay in the order in which
/// a walk through the rows first sees them.
Candidates fuse(std::span<const RowView> rows, Fusion fusion, const Priors& priors);

}  // namespace eyespan
