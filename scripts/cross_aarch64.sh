#!/usr/bin/env bash
# Compiles the CUDA module for Arm (Grace) on an x86-64 Linux, as far as that can be checked without one: the
# module is linked, and every library symbol that it needs is the C or the C++ library's.
#
#   PYTHON=python3.12 scripts/cross_aarch64.sh OUT
#
# Needs aarch64-linux-gnu-g++ (Debian's g++-aarch64-linux-gnu), nvcc of CUDA 13, and pip. ARCHITECTURES is
# Grace Hopper's and Grace Blackwell's, "90;100", by default. There is no CPU module on Arm.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python=${PYTHON:-python3}
"$python" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/pip" install -q cmake ninja 'nanobind>=2.4' 'jaxlib==0.10.0' 'nvidia-cudnn-cu13>=9.10.1,<10'
# The runtime's static library is the part of the toolkit that is Arm's; compiler and headers are this machine's.
"$bin/pip" download -q --no-deps --only-binary :all: --platform manylinux2014_aarch64 -d "$work" 'nvidia-cuda-runtime==13.0.*'
"$bin/python" -m zipfile -e "$work"/nvidia_cuda_runtime-*.whl "$work/arm"

nvcc=$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
root=$(dirname "$(dirname "$nvcc")")
cat > "$work/aarch64.cmake" << TOOLCHAIN
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
TOOLCHAIN
"$bin/cmake" -S . -B "$work/build" -G Ninja -DCMAKE_MAKE_PROGRAM="$bin/ninja" -DCMAKE_TOOLCHAIN_FILE="$work/aarch64.cmake" \
  -DCMAKE_BUILD_TYPE=Release -DJAX_CONVGRAD_CPU=OFF -DJAX_CONVGRAD_CUDA=ON -DJAX_CONVGRAD_WERROR=ON \
  -DJAX_CONVGRAD_CUDA_ARCHITECTURES="${ARCHITECTURES:-90;100}" \
  -DCUDAToolkit_ROOT="$root" -DCUDAToolkit_NVCC_EXECUTABLE="$nvcc" \
  -DCUDA_cudart_static_LIBRARY="$work/arm/nvidia/cu13/lib/libcudart_static.a" -DCUDA_CUDART="$work/arm/nvidia/cu13/lib/libcudart.so.13" \
  -DPython_EXECUTABLE="$bin/python" -DPython_INCLUDE_DIR="$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
  -DPython_SOABI="$("$bin/python" -c 'import sys; print(f"cpython-{sys.version_info[0]}{sys.version_info[1]}-aarch64-linux-gnu")')"
"$bin/ninja" -C "$work/build"
module=$(find "$work/build" -name '_cuda*.so')
readelf -h "$module" | grep -q AArch64
aarch64-linux-gnu-nm --dynamic --undefined-only "$module" | grep -vE ' w | U \S+@(GLIBC|GLIBCXX|CXXABI|GCC)_| U _?Py' && exit 1
cp "$module" "$out"
printf '%s: %d bytes\n' "$out/$(basename "$module")" "$(stat -c %s "$module")"
