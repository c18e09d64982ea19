#include "suffix_automaton.h"

#include <algorithm>
#include <stdexcept>

#include "checks.h"

namespace eyespan {

namespace {

constexpr std::size_t kFirstSlots = 64;

// Text that repeats one phrase n times has n nested suffixes that all end anew with each token.
// Past this many the shortest keep an older end of theirs: still a match, only not the latest.
constexpr int kMostLinks = 1024;

}  // namespace

SuffixAutomaton::SuffixAutomaton(std::size_t max_tokens, std::int32_t count_depth)
    : max_tokens_(max_tokens), count_depth_(count_depth) {
  if (max_tokens < 2 || max_tokens > (std::size_t{1} << 28)) {
    throw std::invalid_argument("a suffix automaton's max_tokens must lie in [2, 2^28]");
  }
  if (count_depth < 0 || count_depth > kMostLinks) {
    throw std::invalid_argument("a suffix automaton's count_depth must lie in [0, 1024]");
  }
  start_over();
}

void SuffixAutomaton::start_over() {
  text_.clear();
  barriers_.clear();
  states_.assign(1, State{0, kNone, kNone, kNone, kNone, 0});
  edges_.clear();
  slots_.assign(std::max(kFirstSlots, slots_.size()), kNone);
  last_ = tail_ = kRoot;
  last_match_ = SuffixMatch{};
}

void SuffixAutomaton::append(std::int32_t token) {
  require_token(token);
  append_symbol(token);
  EYESPAN_VERIFY(*this);
}

void SuffixAutomaton::barrier() {
  if (text_.empty() || text_.back() < 0) return;
  append_symbol(-1);
}

void SuffixAutomaton::extend(std::span<const std::int32_t> tokens, const TokenSet& media) {
  for (const std::int32_t token : tokens) {
    if (media.contains(token)) {
      barrier();
    } else {
      append(token);
    }
  }
}

void SuffixAutomaton::append_symbol(std::int32_t symbol) {
  if (text_.size() == max_tokens_) rebuild_from_recent_half();
  const auto end = static_cast<std::int32_t>(text_.size());
  if (symbol < 0) {
    // After the rebuild, which numbers them anew.
    symbol = -1 - static_cast<std::int32_t>(barriers_.size());
    barriers_.push_back(end);
  }
  text_.push_back(symbol);

  const std::int32_t current = add_state(State{end + 1, kRoot, end, end, kNone, 0});
  std::int32_t from = last_;
  std::int32_t edge = kNone;
  while (from != kNone && (edge = find_edge(from, symbol)) == kNone) {
    add_edge(from, symbol, current);
    from = states_[from].link;
  }
  if (from != kNone) {
    const std::int32_t next = edges_[edge].target;
    const std::int32_t length = states_[from].length + 1;
    if (states_[next].length == length) {
      states_[current].link = next;
    } else {
      // The shorter substrings of `next` gain an end position that its longer ones lack: split.
      State split = states_[next];
      split.length = length;
      split.first_edge = kNone;
      const std::int32_t clone = add_state(split);
      for (std::int32_t e = states_[next].first_edge; e != kNone; e = edges_[e].next) {
        add_edge(clone, edges_[e].symbol, edges_[e].target);
      }
      for (; from != kNone; from = states_[from].link) {
        edge = find_edge(from, symbol);
        if (edge == kNone || edges_[edge].target != next) break;
        edges_[edge].target = clone;
      }
      states_[next].link = states_[current].link = clone;
    }
  }
  last_ = current;
  if (count_depth_ > 0) {
    // A split may have left the old tail with longer suffixes only: the climb sees to that as well.
    tail_ = edges_[find_edge(tail_, symbol)].target;
    const std::int32_t kept = std::min(end + 1, count_depth_);
    while (states_[states_[tail_].link].length >= kept) tail_ = states_[tail_].link;
    for (std::int32_t s = tail_; s != kRoot; s = states_[s].link) ++states_[s].count;
  }

  const std::int32_t matched = states_[current].link;
  last_match_ = SuffixMatch{states_[matched].length, states_[matched].last_end};
  std::int32_t state = matched;
  for (int links = 0; state != kRoot && links < kMostLinks; ++links) {
    states_[state].last_end = end;
    state = states_[state].link;
  }
}

void SuffixAutomaton::rebuild_from_recent_half() {
  const auto half = static_cast<std::ptrdiff_t>(max_tokens_ / 2);
  const std::vector<std::int32_t> recent(text_.end() - half, text_.end());
  start_over();
  for (const std::int32_t symbol : recent) {
    if (symbol < 0) {
      barrier();
    } else {
      append_symbol(symbol);
    }
  }
}

SuffixMatch SuffixAutomaton::match(Occurrence occurrence, std::span<const std::int32_t> extra,
                                   const TokenSet& media, std::size_t room) const {
  if (last_ == kRoot) return SuffixMatch{};
  const std::int32_t matched = states_[last_].link;
  SuffixCursor cursor{matched, states_[matched].length};
  if (!extra.empty()) {
    cursor = advance(SuffixCursor{last_, states_[last_].length}, extra, media);
  }
  if (cursor.length == 0) return SuffixMatch{};
  if (occurrence == Occurrence::earliest) {
    return SuffixMatch{cursor.length,
                       states_[climb(cursor.state, room, extra.size())].first_end};
  }
  return extra.empty() ? last_match_ : SuffixMatch{cursor.length, states_[cursor.state].last_end};
}

SuffixCursor SuffixAutomaton::advance(SuffixCursor cursor, std::span<const std::int32_t> tokens,
                                      const TokenSet& media, std::int32_t longest) const {
  require_cursor(cursor);
  auto [state, length] = cursor;
  for (const std::int32_t token : tokens) {
    std::int32_t edge = kNone;
    if (token >= 0 && !media.contains(token)) {
      while ((edge = find_edge(state, token)) == kNone && state != kRoot) {
        state = states_[state].link;
        length = states_[state].length;
      }
    }
    state = edge == kNone ? kRoot : edges_[edge].target;
    length = edge == kNone ? 0 : length + 1;
    if (length > longest) {
      length = longest;
      while (state != kRoot && states_[states_[state].link].length >= length) {
        state = states_[state].link;
      }
    }
  }
  return SuffixCursor{state, length};
}

SuffixMatch SuffixAutomaton::place(SuffixCursor cursor, Occurrence occurrence,
                                   std::size_t room) const {
  require_cursor(cursor);
  if (cursor.length == 0) return SuffixMatch{};
  return SuffixMatch{cursor.length, occurrence == Occurrence::latest
                                        ? states_[cursor.state].last_end
                                        : states_[climb(cursor.state, room, 0)].first_end};
}

// The first state on the way up whose earliest occurrence is followed by `room` tokens, `behind` of
// them behind the text; else the last one below the root.
std::int32_t SuffixAutomaton::climb(std::int32_t state, std::size_t room,
                                    std::size_t behind) const noexcept {
  const auto following = [&](std::int32_t end) {
    const auto stop = std::upper_bound(barriers_.begin(), barriers_.end(), end);
    const std::size_t limit =
        stop == barriers_.end() ? text_.size() + behind : static_cast<std::size_t>(*stop);
    return limit - static_cast<std::size_t>(end) - 1;
  };
  while (following(states_[state].first_end) < room && states_[state].link != kRoot) {
    state = states_[state].link;
  }
  return state;
}

void SuffixAutomaton::require_cursor(SuffixCursor cursor) const {
  const bool known = cursor.state >= 0 && static_cast<std::size_t>(cursor.state) < states_.size() &&
                     cursor.length <= states_[cursor.state].length &&
                     cursor.length > (cursor.state == kRoot ? -1 : length(link(cursor.state)));
  if (!known) throw std::invalid_argument("a cursor is none of this suffix automaton's");
}

std::vector<std::int32_t> SuffixAutomaton::continuation(const SuffixMatch& match,
                                                        std::size_t most,
                                                        std::span<const std::int32_t> extra,
                                                        const TokenSet& media) const {
  std::vector<std::int32_t> tokens;
  if (match.length == 0) return tokens;
  for (auto at = static_cast<std::size_t>(match.end) + 1;
       tokens.size() < most && at < text_.size() + extra.size(); ++at) {
    const std::int32_t token = at < text_.size() ? text_[at] : extra[at - text_.size()];
    if (token < 0 || media.contains(token)) break;
    tokens.push_back(token);
  }
  return tokens;
}

std::int32_t SuffixAutomaton::add_state(const State& state) {
  states_.push_back(state);
  return static_cast<std::int32_t>(states_.size()) - 1;
}

void SuffixAutomaton::add_edge(std::int32_t state, std::int32_t symbol, std::int32_t target) {
  if ((edges_.size() + 1) * 2 > slots_.size()) grow_slots();
  const auto edge = static_cast<std::int32_t>(edges_.size());
  edges_.push_back(Edge{state, symbol, target, states_[state].first_edge});
  states_[state].first_edge = edge;
  slots_[slot_of(state, symbol)] = edge;
}

std::int32_t SuffixAutomaton::find_edge(std::int32_t state, std::int32_t symbol) const noexcept {
  return slots_[slot_of(state, symbol)];
}

// The slot that holds the edge, or the free one where it would go.
std::size_t SuffixAutomaton::slot_of(std::int32_t state, std::int32_t symbol) const noexcept {
  const std::uint64_t key = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(state)) << 32) |
                            static_cast<std::uint32_t>(symbol);
  std::uint64_t hashed = key * 0x9E3779B97F4A7C15u;
  hashed = (hashed ^ (hashed >> 32)) * 0xD6E8FEB86659FD93u;
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = (hashed >> 32) & mask;
  for (; slots_[slot] != kNone; slot = (slot + 1) & mask) {
    const Edge& edge = edges_[slots_[slot]];
    if (edge.state == state && edge.symbol == symbol) break;
  }
  return slot;
}

void SuffixAutomaton::grow_slots() {
  slots_.assign(slots_.size() * 2, kNone);
  for (std::size_t e = 0; e < edges_.size(); ++e) {
    slots_[slot_of(edges_[e].state, edges_[e].symbol)] = static_cast<std::int32_t>(e);
  }
}

std::size_t SuffixAutomaton::bytes() const noexcept {
  return sizeof(*this) + (text_.capacity() + barriers_.capacity()) * sizeof(std::int32_t) +
         states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) +
         slots_.capacity() * sizeof(std::int32_t);
}

std::string SuffixAutomaton::check_integrity() const {
  const auto states = static_cast<std::int32_t>(states_.size());
  if (text_.size() > max_tokens_) return "more text than max_tokens";
  if (states_.size() > 2 * text_.size() + 1) return "more states than twice the text";
  if (edges_.size() > 3 * text_.size()) return "more edges than three times the text";
  if (edges_.size() * 2 > slots_.size()) return "the edge table is more than half full";
  if (states_[last_].length != static_cast<std::int32_t>(text_.size())) {
    return "the last state is not the whole text";
  }
  std::size_t listed = 0;
  for (std::int32_t s = 0; s < states; ++s) {
    const State& state = states_[s];
    for (std::int32_t e = state.first_edge; e != kNone; e = edges_[e].next) {
      if (++listed > edges_.size()) return "an edge list runs in a circle";
      if (edges_[e].state != s) return "an edge is in another state's list";
    }
    if (s == kRoot) continue;
    if (state.link < 0 || state.link >= states) return "a suffix link points nowhere";
    if (states_[state.link].length >= state.length) return "a suffix link is not shorter";
    if (state.first_end > state.last_end ||
        state.last_end >= static_cast<std::int32_t>(text_.size()) ||
        state.first_end + 1 < state.length) {
      return "an end position does not fit its substring";
    }
    if (states_[state.link].first_end > state.first_end && state.link != kRoot) {
      return "a suffix ends later than the substring that it ends";
    }
  }
  if (listed != edges_.size()) return "edge lists and edges differ in number";
  for (std::size_t e = 0; e < edges_.size(); ++e) {
    const Edge& edge = edges_[e];
    if (edge.target <= kRoot || edge.target >= states) return "an edge points nowhere";
    const State& target = states_[edge.target];
    const std::int32_t reached = states_[edge.state].length + 1;
    if (reached > target.length || reached <= states_[target.link].length) {
      return "an edge reaches a state of other lengths";
    }
    if (text_[target.first_end] != edge.symbol || text_[target.last_end] != edge.symbol) {
      return "an edge's symbol is not where its target ends";
    }
    if (find_edge(edge.state, edge.symbol) != static_cast<std::int32_t>(e)) {
      return "an edge cannot be found by its symbol";
    }
  }
  for (std::size_t b = 0; b < barriers_.size(); ++b) {
    if (static_cast<std::size_t>(barriers_[b]) >= text_.size() ||
        text_[static_cast<std::size_t>(barriers_[b])] != -1 - static_cast<std::int32_t>(b)) {
      return "a barrier is not where it is listed";
    }
  }
  return count_depth_ > 0 ? check_counts() : "";
}

// Substrings of a state that is no prefix of the text end where the longer ones that they end do;
// one that is a prefix has one end more.
std::string SuffixAutomaton::check_counts() const {
  std::vector<std::int32_t> ends(states_.size(), 0);
  for (std::size_t s = 1; s < states_.size(); ++s) {
    const State& state = states_[s];
    ends[static_cast<std::size_t>(state.link)] += state.count;
    if (state.first_end + 1 == state.length) ++ends[s];
  }
  const auto kept = std::min(static_cast<std::int32_t>(text_.size()), count_depth_);
  const bool tail = states_[tail_].length >= kept &&
                    (tail_ == kRoot || states_[states_[tail_].link].length < kept);
  if (!tail) return "the tail is not the text's last symbols";
  for (std::size_t s = 1; s < states_.size(); ++s) {
    const State& state = states_[s];
    if (state.length < count_depth_ && state.count != ends[s]) {
      return "a count is not its number of ends";
    }
  }
  return "";
}

}  // namespace eyespan
