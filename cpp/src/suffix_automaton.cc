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

SuffixAutomaton::SuffixAutomaton(std::size_t max_tokens) : max_tokens_(max_tokens) {
  if (max_tokens < 2 || max_tokens > (std::size_t{1} << 28)) {
    throw std::invalid_argument("a suffix automaton's max_tokens must lie in [2, 2^28]");
  }
  start_over();
}

void SuffixAutomaton::start_over() {
  text_.clear();
  states_.assign(1, State{0, kNone, kNone, kNone, kNone});
  edges_.clear();
  slots_.assign(std::max(kFirstSlots, slots_.size()), kNone);
  last_ = kRoot;
  barriers_ = 0;
  first_match_ = last_match_ = SuffixMatch{};
}

void SuffixAutomaton::append(std::int32_t token) {
  require_token(token);
  append_symbol(token);
  EYESPAN_VERIFY(*this);
}

void SuffixAutomaton::barrier() {
  if (text_.empty() || text_.back() < 0) return;
  append_symbol(-1 - barriers_++);
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
  text_.push_back(symbol);

  const std::int32_t current = add_state(State{end + 1, kRoot, end, end, kNone});
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

  const std::int32_t matched = states_[current].link;
  first_match_ = SuffixMatch{states_[matched].length, states_[matched].first_end};
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
                                   const TokenSet& media) const {
  const bool latest = occurrence == Occurrence::latest;
  if (extra.empty()) return latest ? last_match_ : first_match_;
  std::int32_t state = last_;
  std::int32_t length = states_[last_].length;
  for (const std::int32_t token : extra) {
    std::int32_t edge = kNone;
    if (!media.contains(token)) {
      while ((edge = find_edge(state, token)) == kNone && state != kRoot) {
        state = states_[state].link;
        length = states_[state].length;
      }
    }
    state = edge == kNone ? kRoot : edges_[edge].target;
    length = edge == kNone ? 0 : length + 1;
  }
  if (length == 0) return SuffixMatch{};
  return SuffixMatch{length, latest ? states_[state].last_end : states_[state].first_end};
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
  return sizeof(*this) + text_.capacity() * sizeof(std::int32_t) +
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
  return "";
}

}  // namespace eyespan
