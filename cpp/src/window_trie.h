// Counted windows of text: for every token, the trie of what followed it (Lookahead, Zhao et al.,
// "Lookahead: An Inference Acceleration Framework for Large Language Model with Lossless Generation
// Accuracy", KDD 2024, arXiv 2312.12728).
//
// Invariant: a node stands for a first token and the tokens after it, at most `depth` of them; its
// count is how many windows passed through it, halved by each squeeze since, so that no node counts
// more than its parent. No window holds a media or an end id.
// Cost: add_windows() takes `depth` hash steps a window; find() is one; a squeeze copies what stays.
// Memory is bounded: before a window would pass `max_nodes`, every trie is squeezed until half of
// them are left. About 40 bytes a node.
// One writer or many readers at a time; the caller serialises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "token_set.h"

namespace eyespan {

/// When a trie is thinned out at the end of a request.
struct TrieLimits {
  std::int32_t trie_nodes = 512;       // a trie with more of them is squeezed ...
  std::int32_t touched_tries = 1024;   // ... once windows were added to this many tries
};

class WindowTrie {
 public:
  static constexpr std::int32_t kNone = -1;

  /// @param depth tokens after a window's first one, 1 to 64.
  /// @param max_nodes most nodes of all tries, at least 2 (depth + 1).
  WindowTrie(int depth, std::size_t max_nodes, const TrieLimits& limits = {});

  /// Counts the windows that begin at the first `starts` tokens. Each ends after `depth` more
  /// tokens, or before the text's end or a media or end id; one without a second token is none.
  void add_windows(std::span<const std::int32_t> tokens, std::size_t starts, const TokenSet& media,
                   const TokenSet& eos);

  /// The end of a request: once enough tries were touched, those of them over the limit lose the
  /// nodes that count at most 1, and the others' counts are halved.
  void end_request();

  /// Forgets all windows.
  void clear();

  /// Every node besides the top, parents first: its token, its parent's place in the list (kNone
  /// for a trie's first token), its count; of a first token whether it was touched, else 0.
  struct Listing {
    std::vector<std::int32_t> tokens, parents;
    std::vector<float> counts;
    std::vector<std::uint8_t> touched;
  };
  Listing list() const;
  /// Replaces the content by listed nodes, or throws std::invalid_argument and changes nothing.
  void restore(std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents,
               std::span<const float> counts, std::span<const std::uint8_t> touched);

  /// The trie of a first token, or kNone.
  std::int32_t trie(std::int32_t token) const noexcept { return find(0, token); }
  /// The child of a node, or kNone; nothing follows kNone.
  std::int32_t find(std::int32_t node, std::int32_t token) const noexcept {
    return node == kNone ? kNone : slots_[slot_of(node, token)];
  }
  std::int32_t token(std::int32_t node) const noexcept { return nodes_[node].token; }
  double count(std::int32_t node) const noexcept {
    return node == kNone ? 0.0 : nodes_[node].count;
  }
  /// A node's children, the newest first: for (n = first_child(x); n != kNone; n = sibling(n)).
  std::int32_t first_child(std::int32_t node) const noexcept {
    return node == kNone ? kNone : nodes_[node].first_child;
  }
  std::int32_t sibling(std::int32_t node) const noexcept { return nodes_[node].sibling; }

  int depth() const noexcept { return depth_; }
  /// Nodes, the first tokens included.
  std::size_t size() const noexcept { return nodes_.size() - 1; }
  std::size_t max_nodes() const noexcept { return max_nodes_; }
  std::size_t bytes() const noexcept;

  /// The first rule that is broken, or "". O(size).
  std::string check_integrity() const;

 private:
  struct Node {
    std::int32_t token;
    std::int32_t parent;
    std::int32_t first_child, sibling;
    float count;           // whole numbers and their halves, exact up to 2^24
    std::int32_t below;    // of a trie: its nodes below the first token
    bool touched;          // of a trie: since the last squeeze
  };

  std::int32_t add_node(std::int32_t parent, std::int32_t token);
  std::size_t slot_of(std::int32_t parent, std::int32_t token) const noexcept;
  void grow_slots();
  void squeeze(bool all);

  int depth_;
  std::size_t max_nodes_;
  TrieLimits limits_;
  std::int32_t touched_ = 0;
  std::vector<Node> nodes_;          // a parent before its children; 0 is above all tries
  std::vector<std::int32_t> slots_;  // node by (parent, token), linear probing, at most half full
};

}  // namespace eyespan
