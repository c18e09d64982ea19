// Chances of a draft's nodes, learned from what came true, and the cut that pays (eyespan/budget.py).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace eyespan {

/// Where each node of a proposal is counted, and what it may bring.
struct Weighing {
  std::vector<std::int32_t> depths;  ///< 1 for children of the root
  std::vector<std::int32_t> cells;   ///< where the calibration counts the node
  std::vector<double> chances;       ///< probability to be committed; no node above its parent
};

/// Counts nodes offered and nodes that lay on the text's real path, by cells of
/// (candidate source, depth, octave of the drafter's score).
class Calibration {
 public:
  static constexpr int kDepths = 12;
  static constexpr int kBins = 24;
  /// Older evidence fades: after 700 rounds that touch a cell, what it held counts half.
  static constexpr double kDecay = 0.999;
  /// Offered nodes that the drafter's own score is worth before anything was seen.
  static constexpr double kPriorWeight = 2.0;
  /// What a drafter without scores is taken to believe of each guess.
  static constexpr float kUnscored = 0.5F;

  /// Throws std::invalid_argument below one source.
  explicit Calibration(int sources);

  /// A proposal's nodes; `scores` and `origins` may be empty. Scores outside [0, 1] count as the
  /// nearer end. Throws std::invalid_argument for lengths that differ, a parent that does not stand
  /// before its child, an origin below 0, or a score that is no number.
  Weighing weigh(std::span<const std::int32_t> parents, std::span<const float> scores,
                 std::span<const std::int32_t> origins) const;

  /// Chances of nodes of the first source at one depth (from 1), by their scores alone.
  std::vector<double> chances(std::span<const float> scores, int depth) const;

  /// Counts a whole proposal against the text that followed its root; nodes deeper than the text
  /// are not counted. Throws std::invalid_argument for lengths that differ or an unknown cell.
  void learn(std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents,
             std::span<const std::int32_t> depths, std::span<const std::int32_t> cells,
             std::span<const std::int32_t> text);

  std::size_t cells() const { return offered_.size(); }
  const std::vector<double>& offered() const { return offered_; }
  const std::vector<double>& accepted() const { return accepted_; }
  /// Replaces all counts; lengths must be `cells()`.
  void restore(std::span<const double> offered, std::span<const double> accepted);

 private:
  double believed(std::int32_t cell, float score) const;

  std::int32_t sources_;
  std::vector<double> offered_, accepted_;
};

/// What a cut may spend, and what its nodes are worth.
struct CutRules {
  double price;    ///< tokens that a millisecond is worth: what the engine gets done in one
  std::size_t cap; ///< most nodes of a row
  double worth;    ///< tokens that a sent node brings later, accepted or not
  double margin;   ///< tokens of each row by which a draft must be better than a plain step
};

/// Which nodes of each row of one pass to send, likeliest first: those up to the width that brings
/// the most tokens beyond what its time is worth, all rows together, or none. `costs[n]` is the
/// milliseconds of a pass in which every row has n nodes besides its root. Throws
/// std::invalid_argument when a width that could be sent has no cost.
std::vector<std::vector<std::int32_t>> best_cuts(const std::vector<std::span<const double>>& chances,
                                                 std::span<const double> costs,
                                                 const CutRules& rules);

}  // namespace eyespan
