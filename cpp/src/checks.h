// Internal checks: compiled in by -DEYESPAN_CHECKS=ON (continuous integration), free otherwise.
// They guard our own invariants; mistakes of the caller are always refused with an exception.
#pragma once

#include <stdexcept>
#include <string>

namespace eyespan {

/// Throws std::logic_error when `problem` (the answer of a check_integrity()) is not empty.
inline void require_integrity(const std::string& problem) {
  if (!problem.empty()) throw std::logic_error("eyespan core: broken invariant: " + problem);
}

}  // namespace eyespan

#ifdef EYESPAN_CHECKS
#define EYESPAN_VERIFY(object) ::eyespan::require_integrity((object).check_integrity())
#else
#define EYESPAN_VERIFY(object) static_cast<void>(0)
#endif
