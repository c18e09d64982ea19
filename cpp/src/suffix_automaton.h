// A suffix automaton over the prompt's text and the committed tokens of one request (RECAP section
// 3.5): finds the longest earlier match of the text's own end, and what followed it.
//
// Invariant: the automaton recognises exactly the substrings of the kept text; a state stands for
// all substrings with one set of end positions and knows the first and the latest of them. A
// barrier (a media span) is a symbol unlike any other, so that no match ever crosses it.
// Cost: append() is amortised O(1) hash steps plus a climb along suffix links that marks the
// latest ends, cut at 1,024 links; match() without extra tokens is O(1), independent of the text's
// length. At `max_tokens` the automaton is rebuilt from its most recent half, which adds at most
// one more append to the amortised cost of each. About 100 bytes a token at worst.
// One request's own; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "token_set.h"

namespace eyespan {

enum class Occurrence { latest, earliest };

/// The longest suffix that occurred before, and where: `end` is the position of its last token in
/// the kept text, -1 when there is none.
struct SuffixMatch {
  std::int32_t length = 0;
  std::int32_t end = -1;
};

class SuffixAutomaton {
 public:
  /// @param max_tokens most symbols kept, at least 2.
  explicit SuffixAutomaton(std::size_t max_tokens);

  /// Appends one text token; throws std::invalid_argument for a negative one.
  void append(std::int32_t token);
  /// Ends the text here: no match and no continuation crosses this place. Repeats count once.
  void barrier();
  /// Appends `tokens`, each run of media ids as one barrier.
  void extend(std::span<const std::int32_t> tokens, const TokenSet& media);

  /// The match of the text's end: the suffix link of the last state, taken when the newest token
  /// had just been inserted. That order is the whole trick: following the newest token once more
  /// from the last state, as some public code does, matches a text one token further on.
  ///
  /// @param extra tokens behind the text that are not in the automaton (committed, but not yet
  /// appended); the match is then as if they were, at one link walk each. Changes nothing.
  SuffixMatch match(Occurrence occurrence, std::span<const std::int32_t> extra,
                    const TokenSet& media) const;

  /// What followed `match` in the kept text and the `extra` tokens behind it, at most `most`
  /// tokens, up to a barrier, a media id or the end. O(most).
  std::vector<std::int32_t> continuation(const SuffixMatch& match, std::size_t most,
                                         std::span<const std::int32_t> extra,
                                         const TokenSet& media) const;

  std::size_t size() const noexcept { return text_.size(); }
  std::size_t max_tokens() const noexcept { return max_tokens_; }
  std::size_t bytes() const noexcept;

  /// The first rule that is broken, or "". O(size).
  std::string check_integrity() const;

 private:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::int32_t kRoot = 0;

  struct State {
    std::int32_t length;      // of its longest substring
    std::int32_t link;        // the state of the longest suffix with more end positions
    std::int32_t first_end;   // earliest end position
    std::int32_t last_end;    // latest end position
    std::int32_t first_edge;  // head of its edge list, for cloning
  };
  struct Edge {
    std::int32_t state, symbol, target;
    std::int32_t next;  // in the state's list
  };

  void append_symbol(std::int32_t symbol);
  void rebuild_from_recent_half();
  void start_over();
  std::int32_t add_state(const State& state);
  void add_edge(std::int32_t state, std::int32_t symbol, std::int32_t target);
  std::int32_t find_edge(std::int32_t state, std::int32_t symbol) const noexcept;
  std::size_t slot_of(std::int32_t state, std::int32_t symbol) const noexcept;
  void grow_slots();

  std::size_t max_tokens_;
  std::int32_t last_ = kRoot;      // the state of the whole text
  std::int32_t barriers_ = 0;      // barrier b is the symbol -1 - b
  SuffixMatch first_match_, last_match_;  // of the text's end, taken at its last append
  std::vector<std::int32_t> text_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<std::int32_t> slots_;  // edge by (state, symbol), linear probing, at most half full
};

}  // namespace eyespan
