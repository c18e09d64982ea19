// Where an id stands among the 8 of a row, without a branch to guess wrong: fusing two or three rows
// asks this up to 24 times, which makes it most of a fusion's cost.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace eyespan {

/// Bit k: ids[k] == id, for k < 8.
inline std::uint32_t places_in_block(const std::int32_t* ids, std::int32_t id) noexcept {
#if defined(__SSE2__)
  const auto same = [&](int k) {
    const auto four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(ids + k));
    const __m128i equal = _mm_cmpeq_epi32(four, _mm_set1_epi32(id));
    return static_cast<std::uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(equal)));
  };
  return same(0) | same(4) << 4;
#else
  std::uint32_t places = 0;
  for (int k = 0; k < 8; ++k) places |= static_cast<std::uint32_t>(ids[k] == id) << k;
  return places;
#endif
}

}  // namespace eyespan
