#include "window_trie.h"

#include <algorithm>
#include <stdexcept>

#include "checks.h"

namespace eyespan {

namespace {

constexpr std::size_t kFirstSlots = 64;
constexpr std::int32_t kTop = 0;
constexpr float kMostCount = 8388608.0f;  // 2^23: counts stay exact

}  // namespace

WindowTrie::WindowTrie(int depth, std::size_t max_nodes, const TrieLimits& limits)
    : depth_(depth), max_nodes_(max_nodes), limits_(limits) {
  if (depth < 1 || depth > 64) throw std::invalid_argument("depth must lie in [1, 64]");
  if (max_nodes < 2 * (static_cast<std::size_t>(depth) + 1) || max_nodes > std::size_t{1} << 28) {
    throw std::invalid_argument("max_nodes must lie in [2 (depth + 1), 2^28]");
  }
  if (limits.trie_nodes < 1 || limits.touched_tries < 1) {
    throw std::invalid_argument("limits of tries must be at least 1");
  }
  clear();
}

void WindowTrie::clear() {
  nodes_.assign(1, Node{kNone, kNone, kNone, kNone, 0.0f, 0, false});
  slots_.assign(kFirstSlots, kNone);
  touched_ = 0;
}

void WindowTrie::add_windows(std::span<const std::int32_t> tokens, std::size_t starts,
                             const TokenSet& media, const TokenSet& eos) {
  for (const std::int32_t token : tokens) require_token(token);
  const auto breaks = [&](std::int32_t token) {
    return media.contains(token) || eos.contains(token);
  };
  for (std::size_t start = 0; start < std::min(starts, tokens.size()); ++start) {
    const auto after = tokens.subspan(start + 1);
    if (breaks(tokens[start]) || after.empty() || breaks(after[0])) continue;
    while (size() + static_cast<std::size_t>(depth_) + 1 > max_nodes_) squeeze(true);
    std::int32_t trie = find(kTop, tokens[start]);
    if (trie == kNone) trie = add_node(kTop, tokens[start]);
    if (!nodes_[trie].touched) ++touched_;
    nodes_[trie].touched = true;
    std::int32_t node = trie;
    for (const std::int32_t token : after.first(std::min<std::size_t>(after.size(), depth_))) {
      if (breaks(token)) break;
      std::int32_t child = find(node, token);
      if (child == kNone) {
        child = add_node(node, token);
        ++nodes_[trie].below;
      }
      nodes_[child].count = std::min(nodes_[child].count + 1.0f, kMostCount);
      node = child;
    }
  }
  EYESPAN_VERIFY(*this);
}

void WindowTrie::end_request() {
  if (touched_ >= limits_.touched_tries) squeeze(false);
}

// Nodes stand behind their parents, so that one walk in order copies whole tries; a first token is
// copied with the first node that stays below it. With `all`, every trie is squeezed until half of
// the room is free: counts halve each time, so that it ends.
void WindowTrie::squeeze(bool all) {
  do {
    const std::vector<Node> old = std::move(nodes_);
    std::vector<std::int32_t> moved(old.size(), kNone);
    std::vector<std::size_t> tries(old.size());  // every node's, as a place in `old`
    clear();
    moved[kTop] = kTop;
    for (std::size_t i = 1; i < old.size(); ++i) {
      const Node& node = old[i];
      const auto parent = static_cast<std::size_t>(node.parent);
      const std::size_t trie = tries[i] = parent == kTop ? i : tries[parent];
      if (trie == i) continue;
      const bool thin = all || (old[trie].touched && old[trie].below > limits_.trie_nodes);
      if (thin && node.count <= 1.0f) continue;
      if (moved[trie] == kNone) moved[trie] = add_node(kTop, old[trie].token);
      moved[i] = add_node(moved[parent], node.token);
      nodes_[moved[i]].count = thin ? node.count / 2 : node.count;
      ++nodes_[moved[trie]].below;
    }
  } while (all && size() > max_nodes_ / 2);
}

WindowTrie::Listing WindowTrie::list() const {
  Listing listing;
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    listing.tokens.push_back(node.token);
    listing.parents.push_back(node.parent - 1);
    listing.counts.push_back(node.count);
    listing.touched.push_back(node.touched ? 1 : 0);
  }
  return listing;
}

// Adding nodes in their order gives the same lists of children; only what can be wrong in a file is
// looked at before, the rest is check_integrity()'s.
void WindowTrie::restore(std::span<const std::int32_t> tokens,
                         std::span<const std::int32_t> parents, std::span<const float> counts,
                         std::span<const std::uint8_t> touched) {
  const std::size_t size = tokens.size();
  if (parents.size() != size || counts.size() != size || touched.size() != size) {
    throw std::invalid_argument("listed nodes differ in number");
  }
  if (size > max_nodes_) throw std::invalid_argument("more nodes than max_nodes");
  WindowTrie fresh(depth_, max_nodes_, limits_);
  std::vector<std::int32_t> tries(size + 1, kTop);
  for (std::size_t i = 0; i < size; ++i) {
    require_token(tokens[i]);
    if (parents[i] < kNone || parents[i] >= static_cast<std::int32_t>(i)) {
      throw std::invalid_argument("a parent does not come before its child");
    }
    const std::int32_t parent = parents[i] + 1;
    if (fresh.find(parent, tokens[i]) != kNone) throw std::invalid_argument("a node is listed twice");
    const std::int32_t node = fresh.add_node(parent, tokens[i]);
    if (!(counts[i] >= 0.0f && counts[i] <= kMostCount)) {
      throw std::invalid_argument("a count is no number that windows can have");
    }
    fresh.nodes_[node].count = counts[i];
    if (parent == kTop) {
      tries[node] = node;
      fresh.nodes_[node].touched = touched[i] != 0;
      if (touched[i] != 0) ++fresh.touched_;
    } else {
      tries[node] = tries[parent];
      ++fresh.nodes_[tries[node]].below;
    }
  }
  const std::string broken = fresh.check_integrity();
  if (!broken.empty()) throw std::invalid_argument(broken);
  *this = std::move(fresh);
}

std::int32_t WindowTrie::add_node(std::int32_t parent, std::int32_t token) {
  if ((nodes_.size() + 1) * 2 > slots_.size()) grow_slots();
  const auto node = static_cast<std::int32_t>(nodes_.size());
  nodes_.push_back(Node{token, parent, kNone, nodes_[parent].first_child, 0.0f, 0, false});
  nodes_[parent].first_child = node;
  slots_[slot_of(parent, token)] = node;
  return node;
}

std::size_t WindowTrie::slot_of(std::int32_t parent, std::int32_t token) const noexcept {
  const std::uint64_t key =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(parent)) << 32) |
      static_cast<std::uint32_t>(token);
  std::uint64_t hashed = key * 0x9E3779B97F4A7C15u;
  hashed = (hashed ^ (hashed >> 32)) * 0xD6E8FEB86659FD93u;
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = (hashed >> 32) & mask;
  for (; slots_[slot] != kNone; slot = (slot + 1) & mask) {
    const Node& node = nodes_[slots_[slot]];
    if (node.parent == parent && node.token == token) break;
  }
  return slot;
}

void WindowTrie::grow_slots() {
  slots_.assign(slots_.size() * 2, kNone);
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    slots_[slot_of(nodes_[i].parent, nodes_[i].token)] = static_cast<std::int32_t>(i);
  }
}

std::size_t WindowTrie::bytes() const noexcept {
  return sizeof(*this) + nodes_.capacity() * sizeof(Node) +
         slots_.capacity() * sizeof(std::int32_t);
}

std::string WindowTrie::check_integrity() const {
  if (size() > max_nodes_) return "more nodes than max_nodes";
  if (nodes_.size() * 2 > slots_.size()) return "the node table is more than half full";
  std::vector<int> depths(nodes_.size(), -1);
  std::vector<std::int32_t> children(nodes_.size(), 0), below(nodes_.size(), 0);
  std::vector<std::size_t> tries(nodes_.size());
  std::int32_t touched = 0;
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.parent < 0 || static_cast<std::size_t>(node.parent) >= i) {
      return "a parent does not come before its child";
    }
    const auto parent = static_cast<std::size_t>(node.parent);
    depths[i] = depths[parent] + 1;
    tries[i] = parent == kTop ? i : tries[parent];
    ++children[parent];
    if (find(node.parent, node.token) != static_cast<std::int32_t>(i)) {
      return "a node cannot be found by its token";
    }
    if (parent == kTop) {
      if (node.touched) ++touched;
      continue;
    }
    ++below[tries[i]];
    if (depths[i] > depth_) return "a window is too long";
    if (!(node.count > 0.0f)) return "a node counts nothing";
    if (depths[i] > 1 && node.count > nodes_[parent].count) {
      return "a node counts more than its parent";
    }
  }
  if (touched != touched_) return "the touched tries are miscounted";
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    std::int32_t listed = 0;
    for (std::int32_t n = nodes_[i].first_child; n != kNone; n = nodes_[n].sibling) {
      if (nodes_[n].parent != static_cast<std::int32_t>(i)) return "a child is in another's list";
      if (++listed > children[i]) return "a list of children runs in a circle";
    }
    if (listed != children[i]) return "a list of children misses some";
    if (i > 0 && nodes_[i].parent == kTop) {
      if (children[i] == 0) return "a trie without nodes";
      if (below[i] != nodes_[i].below) return "a trie's nodes are miscounted";
    }
  }
  return "";
}

}  // namespace eyespan
