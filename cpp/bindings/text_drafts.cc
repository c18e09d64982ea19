// The part of eyespan._core that drafts from counted text: SuffixDecoding and Lookahead.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "lookahead_draft.h"
#include "suffix_draft.h"
#include "window_trie.h"

using namespace nanobind::literals;

namespace eyespan::bindings {

namespace {

using Tree = std::tuple<OutVector<std::int32_t>, OutVector<std::int32_t>, OutVector<float>>;

Tree tree_of(Draft draft) {
  std::vector<float> scores(draft.scores.begin(), draft.scores.end());
  return {numpy(std::move(draft.tokens)), numpy(std::move(draft.parents)),
          numpy(std::move(scores))};
}

}  // namespace

void bind_text_drafts(nb::module_& m) {
  nb::class_<SuffixRules>(m, "SuffixRules", "Rules of a SuffixDecoding guess; immutable.")
      .def("__init__",
           [](SuffixRules* self, double max_factor, double max_offset, double min_prob,
              int max_depth, bool tree) {
             const SuffixRules rules{max_factor, max_offset, min_prob, max_depth, tree};
             require_rules(rules);
             new (self) SuffixRules(rules);
           },
           nb::kw_only(), "max_factor"_a = 1.0, "max_offset"_a = 0.0, "min_prob"_a = 0.1,
           "max_depth"_a = 24, "tree"_a = true);

  m.def("guess_suffix",
        [](const SuffixAutomaton& text, const Ints& context, const SuffixRules& rules,
           const TokenSet& media, const TokenSet& eos, int budget) {
          SuffixGuess guess = guess_suffix(text, span(context), rules, media, eos, budget);
          return std::tuple(tree_of(std::move(guess.draft)), guess.score, guess.match);
        },
        "text"_a, "context"_a, "rules"_a, "media"_a, "eos"_a, "budget"_a,
        "((tokens, parents, scores), score, tokens matched): the continuations of the context's\n"
        "end that followed it in `text`, by how often they did, at most `budget` nodes; the score\n"
        "is the number of tokens expected to be accepted. `text` must count to `max_depth`.");

  nb::class_<WindowTrie>(m, "WindowTrie",
                         "For every token, the counted windows of what followed it.")
      .def("__init__",
           [](WindowTrie* self, int depth, std::size_t max_nodes, std::int32_t trie_nodes,
              std::int32_t touched_tries) {
             new (self) WindowTrie(depth, max_nodes, TrieLimits{trie_nodes, touched_tries});
           },
           nb::kw_only(), "depth"_a, "max_nodes"_a, "trie_nodes"_a = 512,
           "touched_tries"_a = 1024,
           "`depth` tokens after the first of a window. Tries of more than `trie_nodes` nodes are\n"
           "squeezed at a request's end once `touched_tries` of them grew, all of them when\n"
           "`max_nodes` would be passed.")
      .def("__len__", &WindowTrie::size)
      .def_prop_ro("depth", &WindowTrie::depth)
      .def_prop_ro("max_nodes", &WindowTrie::max_nodes)
      .def_prop_ro("nbytes", &WindowTrie::bytes, "Bytes allocated.")
      .def("add_windows",
           [](WindowTrie& self, const Ints& tokens, std::size_t starts, const TokenSet& media,
              const TokenSet& eos) { self.add_windows(span(tokens), starts, media, eos); },
           "tokens"_a, "starts"_a, "media"_a, "eos"_a,
           "Counts the windows that begin at the first `starts` tokens; none holds a media or an\n"
           "end id.")
      .def("end_request", &WindowTrie::end_request,
           "Once enough tries were touched, those over the limit lose nodes that count at most 1\n"
           "and halve the other counts.")
      .def("count",
           [](const WindowTrie& self, const std::vector<std::int32_t>& window) {
             std::int32_t node = window.empty() ? WindowTrie::kNone : self.trie(window[0]);
             for (std::size_t i = 1; i < window.size(); ++i) node = self.find(node, window[i]);
             return self.count(node);
           },
           "window"_a, "How often a window was counted, squeezes taken off; 0 for none.")
      .def("clear", &WindowTrie::clear, "Forgets all windows.")
      .def("export_nodes",
           [](const WindowTrie& self) {
             WindowTrie::Listing nodes = self.list();
             return std::tuple(numpy(std::move(nodes.tokens)), numpy(std::move(nodes.parents)),
                               numpy(std::move(nodes.counts)), numpy(std::move(nodes.touched)));
           },
           "(tokens, parents, counts, touched), each [n]: every node, parents first, -1 above the\n"
           "first tokens.")
      .def("import_nodes",
           [](WindowTrie& self, const Ints& tokens, const Ints& parents, const Floats& counts,
              const Bytes& touched) {
             self.restore(span(tokens), span(parents), span(counts), span(touched));
           },
           "tokens"_a, "parents"_a, "counts"_a, "touched"_a,
           "Replaces the content by exported nodes, or raises ValueError and changes nothing.")
      .def("check_integrity", &WindowTrie::check_integrity, "The first broken rule, or ''.");

  nb::class_<LookaheadRules>(m, "LookaheadRules", "Rules of a Lookahead draft; immutable.")
      .def("__init__",
           [](LookaheadRules* self, int nodes, int depth, double output_weight) {
             const LookaheadRules rules{nodes, depth, output_weight};
             require_rules(rules);
             new (self) LookaheadRules(rules);
           },
           nb::kw_only(), "nodes"_a = 64, "depth"_a = 12, "output_weight"_a = 1e-4);

  m.def("lookahead",
        [](const WindowTrie& input, const WindowTrie& output, const Ints& query,
           const LookaheadRules& rules, const TokenSet& media, int budget) {
          return tree_of(lookahead(input, output, span(query), rules, media, budget));
        },
        "input"_a, "output"_a, "query"_a, "rules"_a, "media"_a, "budget"_a,
        "(tokens, parents, scores) of what followed `query` in the prompt's windows and in those\n"
        "of answers, at most `budget` nodes, depth-first.");
}

}  // namespace eyespan::bindings
