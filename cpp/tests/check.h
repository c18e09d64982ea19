// The little that these tests need: CHECK stops at the first thing that is not as it should be.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                               \
    }                                                                             \
  } while (false)

#define CHECK_REFUSED(expression)                                                        \
  do {                                                                                   \
    bool refused = false;                                                                \
    try {                                                                                \
      static_cast<void>(expression);                                                     \
    } catch (const std::invalid_argument&) {                                             \
      refused = true;                                                                    \
    }                                                                                    \
    if (!refused) {                                                                      \
      std::fprintf(stderr, "%s:%d: not refused: %s\n", __FILE__, __LINE__, #expression); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (false)
