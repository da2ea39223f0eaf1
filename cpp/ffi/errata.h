// The building blocks of both libraries' errata: kinds, ranges of versions, patterns of names.

#ifndef JAX_CONVGRAD_FFI_ERRATA_H_
#define JAX_CONVGRAD_FFI_ERRATA_H_

#include <limits>
#include <string_view>

namespace jax_convgrad {

enum class ErratumKind {
  kWrongNumbers,
  kReadsOutOfBounds,   // wrong numbers, or a NaN that was in unread memory; it may crash
  kWritesOutOfBounds,  // it may crash, or change another array
  kCrashes,            // ends the process
};

// Versions of a library as 10000 * major + 100 * minor + patch, from the first that has the erratum
// up to and without the first that is known to be right.
struct VersionRange {
  int first = 0;
  int fixed = std::numeric_limits<int>::max();

  constexpr bool Contains(int version) const { return first <= version && version < fixed; }
};

// No version is known to be right, so all versions have the erratum.
inline constexpr VersionRange kAllVersions{};

// Whether all of `text` matches `pattern`, where a star stands for any characters.
constexpr bool MatchesPattern(std::string_view text, std::string_view pattern) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() != '*') {
    return !text.empty() && text.front() == pattern.front() &&
           MatchesPattern(text.substr(1), pattern.substr(1));
  }
  for (size_t skipped = 0; skipped <= text.size(); ++skipped) {
    if (MatchesPattern(text.substr(skipped), pattern.substr(1))) return true;
  }
  return false;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_FFI_ERRATA_H_
