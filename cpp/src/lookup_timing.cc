#include "lookup_timing.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace eyespan {

namespace {

using Clock = std::chrono::steady_clock;

std::uint32_t read_all(const RowView& row) {
  std::array<std::uint32_t, sizeof(Predictions) / sizeof(std::uint32_t)> words{};
  if (row) std::memcpy(words.data(), row.best, sizeof(words));
  return std::accumulate(words.begin(), words.end(),
                         static_cast<std::uint32_t>(row.confidence * 1e6f));
}

double nanoseconds(Clock::duration time, std::size_t calls) {
  return std::chrono::duration<double, std::nano>(time).count() /
         static_cast<double>(std::max<std::size_t>(calls, 1));
}

}  // namespace

LookupTimes time_lookups(const RowMap& map, std::span<const std::uint64_t> keys) {
  constexpr std::size_t kBatch = 64;
  std::array<RowView, kBatch> rows;
  std::uint32_t alone = 0, together = 0;

  const auto begin = Clock::now();
  for (const std::uint64_t key : keys) alone += read_all(map.find(key));
  const auto middle = Clock::now();
  for (std::size_t i = 0; i < keys.size(); i += kBatch) {
    const auto batch = keys.subspan(i, std::min(kBatch, keys.size() - i));
    map.find_many(batch, rows);
    for (std::size_t k = 0; k < batch.size(); ++k) together += read_all(rows[k]);
  }
  const auto end = Clock::now();

  if (alone != together) throw std::logic_error("find_many and find disagree");
  return {nanoseconds(middle - begin, keys.size()), nanoseconds(end - middle, keys.size())};
}

}  // namespace eyespan
