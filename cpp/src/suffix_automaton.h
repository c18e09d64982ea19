// A suffix automaton over a text: a request's prompt and committed tokens (RECAP section 3.5), a
// corpus, or the answers of many requests. Finds the longest earlier match of a text's end, what
// followed it, and how often.
//
// Invariant: the automaton recognises exactly the substrings of the kept text; a state stands for
// all substrings with one set of end positions and knows the first and the latest of them. With a
// `count_depth` of D it also knows their number, for substrings of at most D tokens. A barrier (a
// media span, the end of a document) is a symbol unlike any other, so that no match ever crosses it.
// Cost: append() is amortised O(1) hash steps plus a climb along suffix links that marks the
// latest ends, cut at 1,024 links, and one of at most D links that counts; match() without extra
// tokens is O(1), independent of the text's length. At `max_tokens` the automaton is rebuilt from
// its most recent half, which adds at most one more append to the amortised cost of each. About 110
// bytes a token at worst.
// One writer or many readers at a time; the caller serialises.
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

/// Where a reader of some other text stands: the longest suffix of what it has read that occurs
/// here, as its state and its length. Good until the next append.
struct SuffixCursor {
  std::int32_t state = 0;
  std::int32_t length = 0;
};

class SuffixAutomaton {
 public:
  /// @param max_tokens most symbols kept, at least 2.
  /// @param count_depth longest substring whose occurrences are counted; 0 counts none.
  explicit SuffixAutomaton(std::size_t max_tokens, std::int32_t count_depth = 0);

  /// Appends one text token; throws std::invalid_argument for a negative one.
  void append(std::int32_t token);
  /// Forgets the text; keeps the allocation.
  void clear() { start_over(); }
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
  /// @param room see place().
  SuffixMatch match(Occurrence occurrence, std::span<const std::int32_t> extra,
                    const TokenSet& media, std::size_t room = 0) const;

  /// The cursor after reading `tokens`: along an edge where there is one, else along suffix links to
  /// the longest shorter match that has one. Media lead back to the empty match. Amortised O(1) a
  /// token. Throws std::invalid_argument for a cursor that is none of this automaton's.
  /// @param longest the match is kept this short.
  SuffixCursor advance(SuffixCursor cursor, std::span<const std::int32_t> tokens,
                       const TokenSet& media, std::int32_t longest = INT32_MAX) const;

  /// Where a cursor's match occurred. Of the earliest occurrence, when fewer than `room` tokens
  /// follow it, suffix links are climbed until enough follow a shorter match (the length stays that
  /// of the match itself; SAM-Decoding), or none is left. The latest occurrences of shorter matches
  /// end later still, so that there `room` changes nothing.
  SuffixMatch place(SuffixCursor cursor, Occurrence occurrence, std::size_t room = 0) const;

  /// What followed `match` in the kept text and the `extra` tokens behind it, at most `most`
  /// tokens, up to a barrier, a media id or the end. O(most).
  std::vector<std::int32_t> continuation(const SuffixMatch& match, std::size_t most,
                                         std::span<const std::int32_t> extra,
                                         const TokenSet& media) const;

  /// The suffix link of a state other than the root, the length of a state's longest substring, and
  /// how often its substrings of at most `count_depth` tokens occur.
  std::int32_t link(std::int32_t state) const noexcept { return states_[state].link; }
  std::int32_t length(std::int32_t state) const noexcept { return states_[state].length; }
  std::int32_t count(std::int32_t state) const noexcept { return states_[state].count; }

  /// Calls visit(token, state) for what follows a state's substrings, barriers left out, the most
  /// recently met first, at most `most` times.
  template <class Visit>
  void for_each_next(std::int32_t state, int most, Visit visit) const {
    for (std::int32_t e = states_[state].first_edge; e != kNone && most-- > 0; e = edges_[e].next) {
      if (edges_[e].symbol >= 0) visit(edges_[e].symbol, edges_[e].target);
    }
  }

  std::size_t size() const noexcept { return text_.size(); }
  /// The kept text, barriers as negative symbols. Appending it anew, barrier() for each of those,
  /// gives the same automaton: states, edges and their order follow from the text alone.
  std::span<const std::int32_t> text() const noexcept { return text_; }
  std::int32_t count_depth() const noexcept { return count_depth_; }
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
    std::int32_t first_edge;  // head of its edge list, for cloning and visiting
    std::int32_t count;       // end positions; no longer kept up where all substrings are too long
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
  void require_cursor(SuffixCursor cursor) const;
  std::int32_t climb(std::int32_t state, std::size_t room, std::size_t behind) const noexcept;
  std::string check_counts() const;

  std::size_t max_tokens_;
  std::int32_t count_depth_;
  std::int32_t last_ = kRoot;  // the state of the whole text
  std::int32_t tail_ = kRoot;  // the state of the text's last `count_depth` symbols
  SuffixMatch last_match_;     // of the text's end, by latest ends as they were before its append
  std::vector<std::int32_t> text_;
  std::vector<std::int32_t> barriers_;  // their positions; barrier b is the symbol -1 - b
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<std::int32_t> slots_;  // edge by (state, symbol), linear probing, at most half full
};

}  // namespace eyespan
