// What must hold in a test program.

#ifndef JAX_CONVGRAD_TESTS_CHECK_H_
#define JAX_CONVGRAD_TESTS_CHECK_H_

#include <cstdio>
#include <cstdlib>

// The program ends with the line that does not hold.
#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      std::exit(1);                                                              \
    }                                                                            \
  } while (false)

// In a function that says whether all holds.
#define HOLDS(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      std::printf("line %d: %s does not hold\n", __LINE__, #condition); \
      return false;                                                     \
    }                                                                   \
  } while (false)

#endif  // JAX_CONVGRAD_TESTS_CHECK_H_
