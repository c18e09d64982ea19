#include "recycled_tree.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "memory_rows.h"
#include "static_tree.h"

namespace eyespan {

namespace {

using RecycledRow = std::span<const std::int32_t, kRowSize>;

bool is_fresh(RecycledRow row, int rank) {
  if (row[0] == row[1]) return false;  // never written
  return std::find(row.begin(), row.begin() + rank, row[rank]) == row.begin() + rank;
}

}  // namespace

RecycledTree recycled_tree(std::span<const std::int32_t> matrix, std::int32_t root,
                           const TokenSet& media, int budget) {
  const auto vocab = static_cast<std::int32_t>(matrix.size() / kRowSize);
  const auto is_text = [&](std::int32_t token) {
    return token >= 0 && token < vocab && !media.contains(token);
  };
  struct Place {
    std::int32_t node = -1, token = -1;
    int halvings = 0;
    bool filled = false, fresh = false;
  };
  const std::span<const std::int32_t> shape = token_recycling_shape();
  std::vector<Place> places(shape.size());
  places[0] = {-1, root, 0, is_text(root), true};

  RecycledTree tree;
  std::size_t next = 1;
  const std::size_t end = 1 + static_cast<std::size_t>(std::max(budget, 0));
  for (std::size_t p = 0; p < shape.size() && next < end; ++p) {
    const Place above = places[p];
    for (int rank = 0; rank < shape[p] && next < end; ++rank, ++next) {
      if (!above.filled) continue;
      const RecycledRow row(matrix.data() + std::size_t{kRowSize} * above.token, kRowSize);
      const std::int32_t token = row[rank];
      if (!is_text(token)) continue;
      Place& child = places[next];
      child = {static_cast<std::int32_t>(tree.tokens.size()), token, above.halvings + rank + 1,
               true, above.fresh && is_fresh(row, rank)};
      tree.tokens.push_back(token);
      tree.parents.push_back(above.node);
      tree.scores.push_back(child.fresh ? std::ldexp(1.0f, -child.halvings) : 0.0f);
    }
  }
  return tree;
}

}  // namespace eyespan
