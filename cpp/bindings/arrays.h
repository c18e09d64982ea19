// How arrays cross the border: views come in without a copy, vectors leave as numpy without one.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "token_set.h"

namespace eyespan::bindings {

namespace nb = nanobind;

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using OutVector = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig>;
template <class T>
using OutMatrix = nb::ndarray<nb::numpy, T, nb::ndim<2>, nb::c_contig>;

using Ints = Vector<std::int32_t>;
using Floats = Vector<float>;
using Bytes = Vector<std::uint8_t>;
using IntRows = Matrix<std::int32_t>;
using FloatRows = Matrix<float>;

template <class Array>
auto span(const Array& array) {
  return std::span(array.data(), array.size());
}

inline std::span<const std::int32_t> span(const std::optional<Ints>& array) {
  return array ? std::span(array->data(), array->size()) : std::span<const std::int32_t>{};
}

inline const TokenSet& or_empty(const TokenSet* tokens) {
  static const TokenSet empty(0, {});
  return tokens ? *tokens : empty;
}

template <class T>
OutVector<T> numpy(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return OutVector<T>(owned->data(), {owned->size()}, owner);
}

template <class T, std::size_t N>
OutMatrix<T> numpy(std::vector<std::array<T, N>> rows) {
  auto* owned = new std::vector<std::array<T, N>>(std::move(rows));
  nb::capsule owner(owned,
                    [](void* p) noexcept { delete static_cast<std::vector<std::array<T, N>>*>(p); });
  return OutMatrix<T>(owned->data()->data(), {owned->size(), N}, owner);
}

/// Drafts from counted text: SuffixDecoding and Lookahead (text_drafts.cc).
void bind_text_drafts(nb::module_& m);

/// What sizes trees: calibration and cuts (budget.cc).
void bind_budget(nb::module_& m);

}  // namespace eyespan::bindings
