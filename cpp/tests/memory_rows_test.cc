// Rows, the row map under random operations, and the memory's keys.
#include "memory_rows.h"

#include <cmath>
#include <deque>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "memory.h"

using namespace eyespan;

namespace {

Row some_row(std::mt19937& random) {
  std::vector<std::int32_t> ids;
  std::vector<float> logits;
  for (std::int32_t i = 0; i < 8; ++i) {
    ids.push_back(static_cast<std::int32_t>(random() % 1000) * 8 + i);
    logits.push_back(-static_cast<float>(i) * static_cast<float>(random() % 3));
  }
  std::sort(logits.rbegin(), logits.rend());
  return *make_row(ids, logits);
}

void a_row_is_a_softmax() {
  const std::vector<std::int32_t> ids{5, 3};
  const std::vector<float> even{1.5f, 1.5f};
  const Row row = *make_row(ids, even);
  CHECK(row.best.size() == 2 && row.best.ids[2] == -1);
  CHECK(row.best.probs[0] == 0.5f && row.best.probs[1] == 0.5f && row.best.probs[2] == 0.0f);
  CHECK(std::abs(row.confidence - 0.5f) < 1e-7f);
  CHECK(row_problem(row.best, row.confidence).empty());

  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(!make_row(ids, std::vector<float>{infinity, 0.0f}));
  CHECK(!make_row(ids, std::vector<float>{std::nanf(""), 0.0f}));
  CHECK(!make_row({}, {}));
  CHECK(make_row(ids, std::vector<float>{0.0f, -infinity})->confidence == 1.0f);
  CHECK_REFUSED(make_row(ids, std::vector<float>{0.0f, 1.0f}));
  CHECK_REFUSED(make_row(std::vector<std::int32_t>{1 << 21}, std::vector<float>{0.0f}));
}

void a_map_holds_the_last_keys_written() {
  std::mt19937 random(1);
  for (const std::size_t max_rows : {1u, 2u, 7u, 100u}) {
    RowMap map(2, max_rows);
    std::deque<std::uint64_t> written;  // oldest first
    for (int step = 0; step < 3000; ++step) {
      if (random() % 500 == 0) {
        map.clear();
        written.clear();
      }
      const std::uint64_t key = random() % 60;
      map.put(key, some_row(random));
      std::erase(written, key);
      written.push_back(key);
      if (written.size() > max_rows) written.pop_front();
      if (step % 10 == 0) CHECK(map.check_integrity().empty());
      CHECK(map.size() == written.size());
      CHECK(map.find(key));
    }
    const auto rows = map.export_rows();
    for (std::size_t i = 0; i < rows.size(); ++i) CHECK(rows[i].key == written[i]);
  }
}

void the_first_write_of_a_pass_wins() {
  std::mt19937 random(2);
  const Row first = some_row(random), second = some_row(random);
  RowMap map(1, 10);
  map.begin_pass();
  map.put_first(4, first);
  map.put_first(4, second);
  CHECK(map.find(4).best->ids == first.best.ids);
  map.begin_pass();
  map.put_first(4, second);
  CHECK(map.find(4).best->ids == second.best.ids);
  CHECK_REFUSED(map.put(std::uint64_t{1} << 21, first));
}

void media_are_in_no_key() {
  RowMap u(1, 10), c(2, 10), g(3, 10);
  Memory memory(&u, &c, &g);
  const TokenSet media(10, std::vector<std::int32_t>{9});
  const std::vector<std::int32_t> ids(8, -1), history{9, 1}, tokens{2, 9, 3}, parents{-1, 0, 1};
  std::vector<std::int32_t> row_ids;
  std::vector<float> row_logits;
  for (std::int32_t node = 0; node < 3; ++node) {
    row_ids.push_back(node);
    row_logits.push_back(0.0f);
  }
  memory.refresh(history, tokens, parents, TargetRows{row_ids, row_logits, 3, 1}, media);
  CHECK(u.size() == 2 && c.size() == 1 && g.size() == 0);
  CHECK(u.find(2) && u.find(3) && c.find((std::uint64_t{1} << 21) | 2));
  CHECK(memory.find(Context::after(std::vector<std::int32_t>{1, 2}, media)).count == 2);
  CHECK(memory.find(Context::after(std::vector<std::int32_t>{9, 2}, media)).count == 1);
  CHECK(memory.find(Context::after(std::vector<std::int32_t>{2, 9}, media)).count == 0);
}

void an_import_is_all_or_nothing() {
  std::mt19937 random(3);
  RowMap map(1, 5);
  map.put(3, some_row(random));
  auto rows = map.export_rows();
  rows.push_back(rows.front());
  CHECK_REFUSED(map.import_rows(rows));
  rows.back().key = 4;
  rows.back().row.best.probs[0] = 2.0f;
  CHECK_REFUSED(map.import_rows(rows));
  CHECK(map.size() == 1 && map.check_integrity().empty());
}

}  // namespace

int main() {
  a_row_is_a_softmax();
  a_map_holds_the_last_keys_written();
  the_first_write_of_a_pass_wins();
  media_are_in_no_key();
  an_import_is_all_or_nothing();
}
