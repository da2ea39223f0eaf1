// What must hold in a test program: it ends with the line that does not.

#ifndef JAX_CONVGRAD_TESTS_CHECK_H_
#define JAX_CONVGRAD_TESTS_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      std::exit(1);                                                              \
    }                                                                            \
  } while (false)

#endif  // JAX_CONVGRAD_TESTS_CHECK_H_
