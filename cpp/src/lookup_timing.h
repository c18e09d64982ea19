// How long a look-up takes, measured where no interpreter is in the way. For benchmarks.
#pragma once

#include <cstdint>
#include <span>

#include "memory_rows.h"

namespace eyespan {

/// Nanoseconds a look-up.
struct LookupTimes {
  double alone_ns;     // one find() after the other
  double together_ns;  // find_many(), 64 keys a call
};

/// Looks `keys` up both ways and reads every word of the rows.
LookupTimes time_lookups(const RowMap& map, std::span<const std::uint64_t> keys);

}  // namespace eyespan
