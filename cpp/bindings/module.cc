// eyespan._core: the compiled core under Python names. Arrays come in as views and leave as numpy;
// everything that decides lives in cpp/src.
//
// Calls hold the interpreter lock, which is what serialises the sessions that share a memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "best_first_tree.h"
#include "lookup_timing.h"
#include "memory.h"
#include "memory_rows.h"
#include "packing.h"
#include "propose.h"
#include "recycled_tree.h"
#include "static_tree.h"
#include "suffix_automaton.h"
#include "token_set.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace eyespan;
using namespace eyespan::bindings;

namespace {

TargetRows target_rows(const IntRows& ids, const FloatRows& logits) {
  return {span(ids), span(logits), ids.shape(0), ids.shape(1)};
}

std::vector<Row> make_rows(const TargetRows& rows) {
  std::vector<Row> out;
  for (std::size_t i = 0; i < rows.count; ++i) {
    if (const auto row = rows.row(i)) out.push_back(*row);
  }
  return out;
}

// Four parallel arrays, one entry a row: keys, ids, probabilities, confidences.
using RowArrays = std::tuple<OutVector<std::uint64_t>, OutMatrix<std::int32_t>, OutMatrix<float>,
                             OutVector<float>>;

RowArrays row_arrays(const std::vector<RowMap::Saved>& rows) {
  std::vector<std::uint64_t> keys;
  std::vector<std::array<std::int32_t, kRowSize>> ids;
  std::vector<std::array<float, kRowSize>> probs;
  std::vector<float> confidences;
  for (const RowMap::Saved& saved : rows) {
    keys.push_back(saved.key);
    ids.push_back(saved.row.best.ids);
    probs.push_back(saved.row.best.probs);
    confidences.push_back(saved.row.confidence);
  }
  return {numpy(std::move(keys)), numpy(std::move(ids)), numpy(std::move(probs)),
          numpy(std::move(confidences))};
}

std::vector<RowMap::Saved> saved_rows(const Vector<std::uint64_t>& keys, const IntRows& ids,
                                      const FloatRows& probs, const Vector<float>& confidences) {
  const std::size_t n = keys.size();
  if (ids.shape(0) != n || probs.shape(0) != n || confidences.size() != n ||
      ids.shape(1) != kRowSize || probs.shape(1) != kRowSize) {
    throw std::invalid_argument("a saved memory needs one key, 8 ids, 8 probabilities and one "
                                "confidence a row");
  }
  std::vector<RowMap::Saved> rows(n);
  for (std::size_t i = 0; i < n; ++i) {
    rows[i].key = keys.data()[i];
    std::copy_n(ids.data() + i * kRowSize, kRowSize, rows[i].row.best.ids.begin());
    std::copy_n(probs.data() + i * kRowSize, kRowSize, rows[i].row.best.probs.begin());
    rows[i].row.confidence = confidences.data()[i];
  }
  return rows;
}

std::uint64_t key_of(const std::vector<std::int32_t>& tokens) {
  if (tokens.empty() || tokens.size() > Context::kMost) {
    throw std::invalid_argument("a key holds 1 to 4 tokens");
  }
  return Context::after(tokens, TokenSet(0, {})).key(static_cast<int>(tokens.size()));
}

using Pack = std::tuple<OutVector<std::int32_t>, OutVector<std::int32_t>, OutVector<std::int32_t>,
                        OutMatrix<std::uint64_t>, OutVector<std::int32_t>>;
using Proposal = std::tuple<OutVector<std::int32_t>, OutVector<std::int32_t>, OutVector<float>,
                            OutVector<std::int32_t>>;

void bind_memory(nb::module_& m) {
  nb::class_<TokenSet>(m, "TokenSet",
                       "Ids that are never text (media), or that end an answer. Immutable.")
      .def("__init__",
           [](TokenSet* self, std::size_t vocab_size, const std::vector<std::int32_t>& ids) {
             new (self) TokenSet(vocab_size, ids);
           },
           "vocab_size"_a, "ids"_a, "Ids must lie in [0, 2^21); vocab_size only sizes the bitmap.")
      .def("__contains__", &TokenSet::contains, "token"_a)
      .def("__len__", &TokenSet::size);

  nb::class_<RowMap>(m, "RowMap",
                     "Prediction rows under the last `order` text tokens: RECAP's U, C and G.\n"
                     "Holds the `max_rows` most recently written keys.")
      .def(nb::init<int, std::size_t>(), nb::kw_only(), "order"_a, "max_rows"_a)
      .def_prop_ro("order", &RowMap::order)
      .def_prop_ro("max_rows", &RowMap::max_rows)
      .def_prop_ro("nbytes", &RowMap::bytes, "Bytes allocated, everything counted.")
      .def("__len__", &RowMap::size)
      .def("put",
           [](RowMap& self, const std::vector<std::int32_t>& tokens, const Ints& ids,
              const Vector<float>& logits) {
             if (static_cast<int>(tokens.size()) != self.order()) {
               throw std::invalid_argument("the key must hold as many tokens as the map's order");
             }
             const auto row = make_row(span(ids), span(logits));
             if (row) self.put(key_of(tokens), *row);
             return row.has_value();
           },
           "tokens"_a, "ids"_a, "logits"_a,
           "Writes the softmax of the 8 best logits; False, and nothing written, when they are\n"
           "not finite.")
      .def("get",
           [](const RowMap& self, const std::vector<std::int32_t>& tokens)
               -> std::optional<std::tuple<OutVector<std::int32_t>, OutVector<float>, float>> {
             const RowView row = static_cast<int>(tokens.size()) == self.order()
                                     ? self.find(key_of(tokens))
                                     : RowView{};
             if (!row) return std::nullopt;
             return std::tuple(numpy(std::vector(row.best->ids.begin(), row.best->ids.end())),
                               numpy(std::vector(row.best->probs.begin(), row.best->probs.end())),
                               row.confidence);
           },
           "tokens"_a, "(ids [8], probabilities [8], confidence) under these tokens, or None.")
      .def("get_many",
           [](const RowMap& self, const Vector<std::uint64_t>& keys) {
             std::vector<RowView> found(keys.size());
             self.find_many(span(keys), found);
             std::vector<RowMap::Saved> rows;
             for (std::size_t i = 0; i < found.size(); ++i) {
               if (found[i]) {
                 rows.push_back({keys.data()[i], Row{*found[i].best, found[i].confidence}});
               }
             }
             return row_arrays(rows);
           },
           "keys"_a, "The rows that exist among `keys`, in their order.")
      .def("time_lookups",
           [](const RowMap& self, const Vector<std::uint64_t>& keys) {
             const LookupTimes times = time_lookups(self, span(keys));
             return std::pair(times.alone_ns, times.together_ns);
           },
           "keys"_a,
           "Nanoseconds a look-up that reads the whole row: (one after the other, many at once).")
      .def("clear", &RowMap::clear, "Forgets all rows in O(1).")
      .def("export_rows", [](const RowMap& self) { return row_arrays(self.export_rows()); },
           "(keys, ids, probabilities, confidences), least recently written first.")
      .def("import_rows",
           [](RowMap& self, const Vector<std::uint64_t>& keys, const IntRows& ids,
              const FloatRows& probs, const Vector<float>& confidences) {
             self.import_rows(saved_rows(keys, ids, probs, confidences));
           },
           "keys"_a, "ids"_a, "probs"_a,
           "confidences"_a,
           "Replaces the content by exported rows, or raises ValueError and changes nothing.")
      .def("check_integrity", &RowMap::check_integrity, "The first broken rule, or ''.");

  m.def("pack_key", &key_of, "tokens"_a, "The 64-bit key of 1 to 4 tokens, the newest last.");
}

void bind_rules(nb::module_& m) {
  nb::enum_<Fusion>(m, "Fusion", "How the rows that answer one context are weighted.")
      .value("entropy", Fusion::entropy)
      .value("fixed_prior", Fusion::fixed_prior)
      .value("no_prior", Fusion::no_prior)
      .value("uniform", Fusion::uniform)
      .value("gate", Fusion::gate)
      .value("backoff", Fusion::backoff);

  nb::enum_<Occurrence>(m, "Occurrence", "Which earlier occurrence of a match is continued.")
      .value("latest", Occurrence::latest)
      .value("earliest", Occurrence::earliest);

  nb::class_<ProposeRules>(m, "ProposeRules", "Rules of a proposal; immutable.")
      .def("__init__",
           [](ProposeRules* self, Fusion fusion, const Priors& priors,
              const std::vector<double>& eta, int width, int depth,
              const std::vector<std::int32_t>& shape, bool suffix_inside_budget) {
             SearchRules search{fusion, priors, DepthPriors(eta), width, depth};
             require_rules(search);
             if (!shape.empty()) require_shape(shape);
             new (self) ProposeRules{search, shape, suffix_inside_budget};
           },
           nb::kw_only(), "fusion"_a = Fusion::entropy, "priors"_a = Priors{0.70, 0.20, 0.10},
           "eta"_a = std::vector<double>{0.68, 0.63, 0.50, 0.43, 0.40, 0.38}, "width"_a = 8,
           "depth"_a = 10, "shape"_a = std::vector<std::int32_t>{},
           "suffix_inside_budget"_a = false,
           "An empty `shape` searches best first; else it counts the children of each node of\n"
           "a static tree in breadth-first order, root first.");

  m.def("token_recycling_shape",
        [] {
          const auto shape = token_recycling_shape();
          return std::vector(shape.begin(), shape.end());
        },
        "The static tree of Token Recycling: 80 nodes, depth 6, as a `shape`.");

  m.def("recycled_tree",
        [](const IntRows& matrix, std::int32_t root, const TokenSet& media, int budget) {
          if (matrix.shape(1) != kRowSize) {
            throw std::invalid_argument("a matrix of recycled rows has 8 ids a row");
          }
          RecycledTree tree = recycled_tree(span(matrix), root, media, budget);
          return std::tuple(numpy(std::move(tree.tokens)), numpy(std::move(tree.parents)),
                            numpy(std::move(tree.scores)));
        },
        "matrix"_a, "root"_a, "media"_a, "budget"_a,
        "(tokens, parents, scores), each [n]: the first `budget` places of that tree, filled from\n"
        "the rows [vocab, 8] of what follows each token. Media are left out with all below them;\n"
        "a node scores 2^-(sum of rank + 1) over its path, and 0 where one of them repeats a\n"
        "better sibling or comes from a row whose ids are all the same.");
}

void bind_proposal(nb::module_& m) {
  nb::class_<Memory>(m, "Memory", "The maps of one request: a shared U, its own C and G or None.")
      .def(nb::init<RowMap*, RowMap*, RowMap*, RowMap*>(), "u"_a, "c"_a = nb::none(),
           "g"_a = nb::none(), "fourth"_a = nb::none(), nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
           "With a map of order 4, rows can be chosen (fusion backoff or gate) but not mixed.")
      .def("seed",
           [](Memory& self, const Ints& prompt, const Ints& positions, const IntRows& ids,
              const FloatRows& logits, const TokenSet& media, bool contexts) {
             self.seed(span(prompt), span(positions), target_rows(ids, logits), media, contexts);
           },
           "prompt"_a, "positions"_a, "row_ids"_a,
           "row_logits"_a, "media"_a, nb::kw_only(), "contexts"_a = false,
           "Prefill: the first occurrence of each text token writes U, with `contexts` also C\n"
           "and G. Rows are [m, K], descending, at ascending `positions` of the prompt.")
      .def("refresh",
           [](Memory& self, const Ints& history, const Ints& tokens, const Ints& parents,
              const IntRows& ids, const FloatRows& logits, const TokenSet& media) {
             self.refresh(span(history), span(tokens), span(parents), target_rows(ids, logits),
                          media);
           },
           "history"_a, "tokens"_a, "parents"_a,
           "row_ids"_a, "row_logits"_a, "media"_a,
           "Every node of a packed tree writes its row [n, K] under its own path context; the\n"
           "first occurrence of a key wins. `history` was committed before the root, oldest\n"
           "first; its last three tokens count.")
      .def("has_row",
           [](const Memory& self, const Ints& history, const TokenSet& media) {
             return self.find(Context::after(span(history), media)).count > 0;
           },
           "history"_a, "media"_a, "Whether any map answers after `history`.")
      .def("propose",
           [](const Memory& self, const Ints& history, const ProposeRules& rules, int budget,
              const TokenSet& media, const TokenSet& eos, const std::optional<Ints>& continuation,
              double continuation_mass, const std::optional<IntRows>& fallback_ids,
              const std::optional<FloatRows>& fallback_logits) {
             std::vector<Row> rows;
             if (fallback_ids && fallback_logits) {
               rows = make_rows(target_rows(*fallback_ids, *fallback_logits));
             }
             std::vector<RowView> fallback;
             for (const Row& row : rows) fallback.push_back({&row.best, row.confidence});
             const SearchGround ground{self, Context::after(span(history), media), media, eos,
                                       fallback};
             Draft draft =
                 propose(ground, rules, budget, Continuation{span(continuation), continuation_mass});
             std::vector<float> scores(draft.scores.begin(), draft.scores.end());
             return Proposal{numpy(std::move(draft.tokens)), numpy(std::move(draft.parents)),
                             numpy(std::move(scores)), numpy(std::move(draft.origins))};
           },
           "history"_a, "rules"_a, "budget"_a, "media"_a, "eos"_a, nb::kw_only(),
           "continuation"_a = nb::none(), "continuation_mass"_a = 1.0,
           "fallback_ids"_a = nb::none(),
           "fallback_logits"_a = nb::none(),
           "(tokens, parents, scores, origins), each [n], of a draft tree after `history`,\n"
           "whose last four tokens count, the root being the newest. A parent comes before its\n"
           "children, -1 hangs from the root; origin 1 marks nodes that only the continuation\n"
           "proposed. `fallback` rows [r, K], at most three, stand in at the root when no map\n"
           "answers there.");

  m.def("pack",
        [](const Ints& tokens, const Ints& parents, const std::optional<Vector<float>>& scores,
           std::int32_t root_token) {
          Packed packed = pack(span(tokens), span(parents),
                               scores ? span(*scores) : std::span<const float>{}, root_token);
          return Pack{numpy(std::move(packed.tokens)), numpy(std::move(packed.parents)),
                      numpy(std::move(packed.depths)), numpy(std::move(packed.ancestors)),
                      numpy(std::move(packed.order))};
        },
        "tokens"_a, "parents"_a, "scores"_a.none(),
        "root_token"_a,
        "(tokens [n], parents [n], depths [n], ancestors [n, 2], order [n - 1]): root first, then\n"
        "depth-first, best child first by score; ties, and trees without scores, in the given\n"
        "order. Bit j of ancestors[i] says that j is i or above it; order[i] is the draft node\n"
        "behind packed node i + 1. At most 127 nodes besides the root. Raises ValueError for a\n"
        "malformed tree.");
}

void bind_suffix(nb::module_& m) {
  nb::class_<SuffixAutomaton>(m, "SuffixAutomaton",
                              "Longest earlier match of the end of a growing text. Media are\n"
                              "barriers that no match crosses.")
      .def(nb::init<std::size_t, std::int32_t>(), nb::kw_only(), "max_tokens"_a,
           "count_depth"_a = 0,
           "At `max_tokens` the most recent half is kept. Occurrences of substrings of at most\n"
           "`count_depth` tokens are counted.")
      .def("__len__", &SuffixAutomaton::size)
      .def_prop_ro("max_tokens", &SuffixAutomaton::max_tokens)
      .def_prop_ro("count_depth", &SuffixAutomaton::count_depth)
      .def_prop_ro("nbytes", &SuffixAutomaton::bytes, "Bytes allocated.")
      .def("append", &SuffixAutomaton::append, "token"_a, "Appends one text token.")
      .def("clear", &SuffixAutomaton::clear, "Forgets the text.")
      .def("text",
           [](const SuffixAutomaton& self) {
             const auto kept = self.text();
             std::vector<std::int32_t> symbols(kept.begin(), kept.end());
             for (std::int32_t& symbol : symbols) symbol = std::max(symbol, -1);
             return numpy(std::move(symbols));
           },
           "[n] the kept text, -1 for a barrier. Appended anew it gives the same automaton.")
      .def("barrier", &SuffixAutomaton::barrier, "No match or continuation crosses this place.")
      .def("extend",
           [](SuffixAutomaton& self, const Ints& tokens, const TokenSet& media) {
             self.extend(span(tokens), media);
           },
           "tokens"_a, "media"_a, "Appends tokens; each run of media is one barrier.")
      .def("match",
           [](const SuffixAutomaton& self, Occurrence occurrence, const std::optional<Ints>& extra,
              const TokenSet* media, std::size_t room) {
             const SuffixMatch match = self.match(occurrence, span(extra), or_empty(media), room);
             return std::pair(match.length, match.end);
           },
           "occurrence"_a = Occurrence::latest, nb::kw_only(),
           "extra"_a = nb::none(), "media"_a = nb::none(), "room"_a = 0,
           "(length, position of its last token) of the longest suffix seen before, (0, -1)\n"
           "for none; as if `extra` had been appended, which it is not. With fewer than `room`\n"
           "tokens behind the earliest occurrence, that of a shorter suffix is taken.")
      .def("advance",
           [](const SuffixAutomaton& self, std::int32_t state, std::int32_t length,
              const Ints& tokens, const TokenSet* media) {
             const SuffixCursor cursor =
                 self.advance(SuffixCursor{state, length}, span(tokens), or_empty(media));
             return std::pair(cursor.state, cursor.length);
           },
           "state"_a, "length"_a, "tokens"_a, nb::kw_only(), "media"_a = nb::none(),
           "The cursor (state, length of the match) of a reader of some other text, `tokens`\n"
           "further on; (0, 0) has read nothing. Good until the next append.")
      .def("place",
           [](const SuffixAutomaton& self, std::int32_t state, std::int32_t length,
              Occurrence occurrence, std::size_t room) {
             const SuffixMatch match = self.place(SuffixCursor{state, length}, occurrence, room);
             return std::pair(match.length, match.end);
           },
           "state"_a, "length"_a, "occurrence"_a = Occurrence::latest, nb::kw_only(), "room"_a = 0,
           "Where a cursor's match occurred, as `match` says it.")
      .def("continuation",
           [](const SuffixAutomaton& self, std::int32_t length, std::int32_t end,
              std::size_t max_tokens, const std::optional<Ints>& extra, const TokenSet* media) {
             if (end < -1 || end >= static_cast<std::int32_t>(self.size())) {
               throw std::invalid_argument("a match ends inside the text");
             }
             return numpy(self.continuation(SuffixMatch{length, end}, max_tokens, span(extra),
                                            or_empty(media)));
           },
           "length"_a, "end"_a, "max_tokens"_a, nb::kw_only(), "extra"_a = nb::none(),
           "media"_a = nb::none(),
           "What followed a match in the text and `extra` behind it, up to a barrier or the end.")
      .def("check_integrity", &SuffixAutomaton::check_integrity, "The first broken rule, or ''.");
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The compiled core: prediction memory, tree search, suffix automaton, packing.";
  m.attr("ROW_SIZE") = kRowSize;
  m.attr("MAX_PACK") = kMaxPack;
  m.attr("TOKEN_LIMIT") = kTokenLimit;
  bind_memory(m);
  bind_rules(m);
  bind_proposal(m);
  bind_suffix(m);
  bind_text_drafts(m);
  bind_budget(m);
}
