// The suffix automaton on texts whose matches are known, and its invariants under random growth.
#include "suffix_automaton.h"

#include <random>

#include "check.h"

using namespace eyespan;

namespace {

const TokenSet kMedia(10, std::vector<std::int32_t>{9});

SuffixAutomaton text(std::vector<std::int32_t> tokens, std::size_t max_tokens = 100) {
  SuffixAutomaton automaton(max_tokens);
  automaton.extend(tokens, kMedia);
  CHECK(automaton.check_integrity().empty());
  return automaton;
}

bool is(const SuffixMatch& match, std::int32_t length, std::int32_t end) {
  return match.length == length && match.end == end;
}

void the_longest_earlier_match_is_found() {
  const auto automaton = text({1, 2, 3, 7, 1, 2, 4, 1, 2});
  CHECK(is(automaton.match(Occurrence::latest, {}, kMedia), 2, 5));
  CHECK(is(automaton.match(Occurrence::earliest, {}, kMedia), 2, 1));
  CHECK(automaton.continuation({2, 1}, 3, {}, kMedia) == (std::vector<std::int32_t>{3, 7, 1}));
  CHECK(is(text({1, 2, 3}).match(Occurrence::latest, {}, kMedia), 0, -1));
}

void tokens_from_outside_are_matched_in_place() {
  const auto automaton = text({1, 2, 3, 7, 1});
  const std::vector<std::int32_t> extra{2};
  CHECK(is(automaton.match(Occurrence::latest, extra, kMedia), 2, 1));
  CHECK(automaton.continuation({2, 1}, 9, extra, kMedia) ==
        (std::vector<std::int32_t>{3, 7, 1, 2}));
  CHECK(is(automaton.match(Occurrence::latest, {}, kMedia), 1, 0));
}

void media_are_barriers() {
  const auto automaton = text({1, 2, 9, 9, 9, 3, 1, 2, 9, 3});
  CHECK(automaton.size() == 8);  // a span is one symbol
  CHECK(is(automaton.match(Occurrence::latest, {}, kMedia), 1, 3));
  CHECK(automaton.continuation({2, 1}, 9, {}, kMedia).empty());
}

void a_reader_of_another_text_is_followed() {
  const auto automaton = text({1, 2, 3, 9, 2, 3, 4});
  const TokenSet none(10, {});
  auto cursor = automaton.advance({}, std::vector<std::int32_t>{7, 1, 2, 3}, none);
  CHECK(cursor.length == 3);
  CHECK(is(automaton.place(cursor, Occurrence::earliest), 3, 2));
  CHECK(is(automaton.place(cursor, Occurrence::earliest, 1), 3, 2));  // no shorter one has more
  cursor = automaton.advance(cursor, std::vector<std::int32_t>{4}, none);
  CHECK(is(automaton.place(cursor, Occurrence::latest), 3, 6));
  cursor = automaton.advance(cursor, std::vector<std::int32_t>{9}, kMedia);
  CHECK(is(automaton.place(cursor, Occurrence::latest), 0, -1));
  CHECK_REFUSED(automaton.advance({1, 7}, {}, none));
}

void occurrences_are_counted() {
  std::mt19937 random(2);
  SuffixAutomaton automaton(64, 5);
  for (int i = 0; i < 2000; ++i) {
    if (random() % 20 == 0) automaton.barrier();
    automaton.append(static_cast<std::int32_t>(random() % 3));
    CHECK(automaton.check_integrity().empty());
  }
  CHECK_REFUSED(SuffixAutomaton(8, -1));
}

void long_text_keeps_its_recent_half() {
  std::mt19937 random(1);
  SuffixAutomaton automaton(64);
  for (int i = 0; i < 2000; ++i) {
    if (random() % 20 == 0) automaton.barrier();
    automaton.append(static_cast<std::int32_t>(random() % 3));
    CHECK(automaton.size() <= 64);
    CHECK(automaton.check_integrity().empty());
  }
}

void wrong_calls_are_refused() {
  CHECK_REFUSED(SuffixAutomaton(1));
  SuffixAutomaton automaton(8);
  CHECK_REFUSED(automaton.append(-3));
}

}  // namespace

int main() {
  the_longest_earlier_match_is_found();
  tokens_from_outside_are_matched_in_place();
  media_are_barriers();
  a_reader_of_another_text_is_followed();
  occurrences_are_counted();
  long_text_keeps_its_recent_half();
  wrong_calls_are_refused();
}
