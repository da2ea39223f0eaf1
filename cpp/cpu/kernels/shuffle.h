// Elements of two vectors by their numbers, which are constants: __builtin_shufflevector, which GCC
// has from 12 on. A mask for what GCC had before is of the type that a comparison gives.

#ifndef JAX_CONVGRAD_CPU_KERNELS_SHUFFLE_H_
#define JAX_CONVGRAD_CPU_KERNELS_SHUFFLE_H_

#if defined(__clang__) || __GNUC__ >= 12
#define JAX_CONVGRAD_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define JAX_CONVGRAD_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype((a) < (b)){__VA_ARGS__})
#endif

#endif  // JAX_CONVGRAD_CPU_KERNELS_SHUFFLE_H_
