// The part of eyespan._core that sizes trees: chances learned from what came true, cuts that pay.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "calibration.h"

using namespace nanobind::literals;

namespace eyespan::bindings {

namespace {

using Doubles = Vector<double>;

std::span<const float> or_none(const std::optional<Floats>& scores) {
  return scores ? std::span(scores->data(), scores->size()) : std::span<const float>{};
}

}  // namespace

void bind_budget(nb::module_& m) {
  nb::class_<Calibration> calibration(m, "Calibration",
                                      "How often nodes of a source, depth and score came true.");
  calibration.attr("DECAY") = Calibration::kDecay;
  calibration.attr("PRIOR_WEIGHT") = Calibration::kPriorWeight;
  calibration
      .def(nb::init<int>(), "sources"_a)
      .def("offered",
           [](const Calibration& self) { return numpy(std::vector(self.offered())); },
           "[cells] nodes proposed, old ones faded; a copy.")
      .def("accepted",
           [](const Calibration& self) { return numpy(std::vector(self.accepted())); },
           "[cells] nodes among them that the text followed; a copy.")
      .def("restore",
           [](Calibration& self, const Doubles& offered, const Doubles& accepted) {
             self.restore(span(offered), span(accepted));
           },
           "offered"_a, "accepted"_a,
           "Replaces all counts. ValueError for what are no such counts; nothing changes then.")
      .def("weigh",
           [](const Calibration& self, const Ints& parents, const std::optional<Floats>& scores,
              const std::optional<Ints>& origins) {
             Weighing out = self.weigh(span(parents), or_none(scores), span(origins));
             return std::tuple(numpy(std::move(out.depths)), numpy(std::move(out.cells)),
                               numpy(std::move(out.chances)));
           },
           "parents"_a, "scores"_a = nb::none(), "origins"_a = nb::none(),
           "(depths, cells, chances) of a proposal's nodes: 1 for children of the root, where each\n"
           "is counted, and its probability to be committed, never above its parent's. Without\n"
           "scores every guess is half believed. ValueError for what is no tree, and for scores\n"
           "that are no numbers.")
      .def("chances",
           [](const Calibration& self, const Floats& scores, int depth) {
             return numpy(self.chances(span(scores), depth));
           },
           "scores"_a, "depth"_a,
           "[n] chances of nodes of the first source at one depth, by their scores alone.")
      .def("learn",
           [](Calibration& self, const Ints& tokens, const Ints& parents, const Ints& depths,
              const Ints& cells, const Ints& text) {
             self.learn(span(tokens), span(parents), span(depths), span(cells), span(text));
           },
           "tokens"_a, "parents"_a, "depths"_a, "cells"_a, "text"_a,
           "Counts a whole proposal against the tokens that followed its root; nodes deeper than\n"
           "those are not counted.");

  m.def("best_cuts",
        [](const std::vector<Doubles>& chances, const Doubles& costs, double price,
           std::size_t cap, double worth, double margin) {
          std::vector<std::span<const double>> rows;
          for (const Doubles& row : chances) rows.push_back(span(row));
          std::vector<OutVector<std::int32_t>> out;
          for (auto& nodes : best_cuts(rows, span(costs), CutRules{price, cap, worth, margin})) {
            out.push_back(numpy(std::move(nodes)));
          }
          return out;
        },
        "chances"_a, "costs"_a, nb::kw_only(), "price"_a, "cap"_a, "worth"_a, "margin"_a,
        "Which nodes of each row of a pass to send, likeliest first: the width that brings the most\n"
        "tokens beyond what its time is worth, all rows together, or none. `costs[n]` is the\n"
        "milliseconds of a pass whose rows have n nodes each besides the root, `price` the tokens\n"
        "that a millisecond is worth.");
}

}  // namespace eyespan::bindings
