#include "memory.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace eyespan {

namespace {

void require_rows(const TargetRows& rows, std::size_t count) {
  if (rows.count != count || rows.ids.size() != count * rows.width ||
      rows.logits.size() != count * rows.width) {
    throw std::invalid_argument("expected " + std::to_string(count) + " rows, got " +
                                std::to_string(rows.count));
  }
}

}  // namespace

Memory::Memory(RowMap* u, RowMap* c, RowMap* g, RowMap* fourth) : maps_{u, c, g, fourth} {
  if (!u) throw std::invalid_argument("a memory needs at least the map of order 1");
  for (int i = 0; i < Context::kMost; ++i) {
    if (maps_[i] && maps_[i]->order() != i + 1) {
      throw std::invalid_argument("expected a map of order " + std::to_string(i + 1) + ", got " +
                                  std::to_string(maps_[i]->order()));
    }
  }
}

void Memory::begin_pass() noexcept {
  for (RowMap* map : maps_) {
    if (map) map->begin_pass();
  }
}

void Memory::write(const Context& context, const Row& row, int highest_order) {
  for (int order = 1; order <= std::min(context.known(), highest_order); ++order) {
    if (RowMap* map = maps_[order - 1]) map->put_first(context.key(order), row);
  }
}

void Memory::seed(std::span<const std::int32_t> prompt, std::span<const std::int32_t> positions,
                  const TargetRows& rows, const TokenSet& media, bool contexts) {
  require_rows(rows, positions.size());
  begin_pass();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::int32_t position = positions[i];
    if (position < 0 || static_cast<std::size_t>(position) >= prompt.size()) {
      throw std::invalid_argument("prompt position " + std::to_string(position) +
                                  " is outside a prompt of " + std::to_string(prompt.size()));
    }
    const auto context =
        Context::after(prompt.first(static_cast<std::size_t>(position) + 1), media);
    if (context.known() == 0) continue;
    if (const auto row = rows.row(i)) write(context, *row, contexts ? Context::kMost : 1);
  }
}

void Memory::refresh(std::span<const std::int32_t> history, std::span<const std::int32_t> tokens,
                     std::span<const std::int32_t> parents, const TargetRows& rows,
                     const TokenSet& media) {
  if (tokens.size() != parents.size() || tokens.empty() || parents[0] != -1) {
    throw std::invalid_argument("a packed tree needs one parent a token, its root first");
  }
  require_rows(rows, tokens.size());
  std::vector<Context> contexts(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int32_t parent = parents[i];
    if (i > 0 && (parent < 0 || static_cast<std::size_t>(parent) >= i)) {
      throw std::invalid_argument("node " + std::to_string(i) + " of a packed tree has parent " +
                                  std::to_string(parent) + ", which does not come before it");
    }
    const Context before = i == 0 ? Context::after(history, media) : contexts[parent];
    contexts[i] = before.then(tokens[i], media);
  }
  begin_pass();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (contexts[i].known() == 0) continue;
    if (const auto row = rows.row(i)) write(contexts[i], *row, Context::kMost);
  }
}

Matches Memory::find(const Context& context) const noexcept {
  Matches matches;
  for (int order = context.known(); order >= 1; --order) {
    const RowMap* map = maps_[order - 1];
    const RowView row = map ? map->find(context.key(order)) : RowView{};
    if (row) matches.rows[matches.count++] = row;
  }
  return matches;
}

}  // namespace eyespan
