#!/usr/bin/env bash
# Builds the CUDA module on a machine with a GPU and JAX, tests it, and measures it.
#
#   scripts/gpu_run.sh OUT [STEP...]
#
# Steps run in the order in which they are named. Without any, these run: build, info, smoke, tests, forced,
# large, sanitizer and bench; the others, such as random and stress, run only if they are named.
#   build      installs the package with the CUDA module into a folder of its own (WHEEL names one that is
#              built already, which saves the time of compiling)
#   info       device, versions, commit
#   smoke      tests/cuda/test_lowering.py and tests/cuda/test_handlers.py
#   tests      the whole test suite, except tests that take most of the device's memory
#   forced     the same with every problem on the handlers
#   matrix     the tests that the site's matrix of transformations names; none may be skipped except
#              those that take more GPUs than there are
#   large      the tests that take most of the device's memory, one after the other
#   random     tests/conv/test_random.py and test_wide.py alone, on the handlers (RANDOM_CASES, default 2000,
#              and WIDE_CASES, default 400, from seed RANDOM_FIRST, default 0)
#   installed  tests/install/test_random.py alone, with install(), by the measured backends (INSTALL_CASES,
#              default 1000)
#   sanitizer  compute-sanitizer's memcheck over a subset of tests/cuda/test_handlers.py and
#              test_resample.py
#   stress     benchmarks/stress_threads.py (THREADS_SECONDS, default 60) and
#              benchmarks/stress_memory.py (MEMORY_SECONDS, default 240)
#   first_call benchmarks/first_call.py (FIRST_CALL_SECONDS, default 300)
#   models     benchmarks/models.py (MODELS_OPTIONS), which needs flax; torch where it is installed
#   train      examples/train_superres.py at its full length, and a wider network for fewer steps, and
#              examples/train_gan.py; on all GPUs too, where there are several
#   scaling    python -m jax_convgrad bench --devices 1,2,4,... on as many GPUs as there are (DEVICES,
#              SCALING_OPTIONS)
#   engines    benchmarks/check_engines.py (ENGINES_SECONDS, default 240)
#   ranks      benchmarks/rank_engines.py (RANKS_OPTIONS)
#   dense      benchmarks/dense_steps.py (DENSE_SECONDS, default 400, and DENSE_OPTIONS), which
#              needs flax
#   survey     benchmarks/survey_cuda.py (SURVEY_SECONDS, default 500, and SURVEY_OPTIONS, default
#              --per-rule 8), the measurements that the rules of CUDA cite
#   bench      python -m jax_convgrad bench
# The thin kernels:
#   thin_kernels     benchmarks/thin_kernels.cu (THIN_ROWS, parts of rows' names), compiled here, or
#                    THIN_KERNELS, which is that program
#   thin_tests       tests/cuda/test_guarded.py: each of them on random problems (THIN_CASES, default 10000)
#   thin_sanitizer   compute-sanitizer's memcheck and racecheck over such random problems (THIN_SANITIZED,
#                    default 60)
#   thin_survey      benchmarks/survey_cuda.py over benchmarks/thin_cases.json (THIN_SECONDS, default 500, and
#                    THIN_ONLY, default " (bf16|f16) ")
# The implicit GEMM kernels, on a Hopper device:
#   gemm_tests       tests/cuda/test_guarded.py: each of them on random problems (GEMM_CASES, default 10000)
#   gemm_sanitizer   compute-sanitizer's memcheck and racecheck over such random problems (GEMM_SANITIZED,
#                    default 60)
#
# Nothing is downloaded: jax with CUDA, nanobind, scikit-build-core, cmake, ninja, pytest and the wheel
# nvidia-cudnn-cu13 must be installed. The CPU module is built if
# onednn-devel-cpu-gomp is installed. COMMIT names the commit if there is no git folder. Everything printed
# goes to OUT; a step that fails does not stop the others, and the exit status says whether one did.
# Tests that fail are in OUT/failures.txt as soon as they do.
# TESTS names the folders or files of the steps tests and forced, as "conv cuda/test_h*.py", where one call cannot
# run all.
# STEP_SECONDS limits each step (default 600). JOBS is the number of processes of the tests and of
# engines (default 8).
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(mkdir -p "${1:?where to write}" && cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- build info smoke tests forced large sanitizer bench
work=${WORK:-/tmp/jax_convgrad_gpu}
mkdir -p "$work"
export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# Tests on a GPU run what users run: with all of XLA's optimizations.
export JAX_DISABLE_MOST_OPTIMIZATIONS=0
commit=${COMMIT:-} && export JAX_CONVGRAD_COMMIT=${commit%% *}
export JAX_CONVGRAD_REQUIRE_CUDA=1 XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CPP_MIN_LOG_LEVEL=2
jobs=${JOBS:-8}

build() {
  rm -rf "$work/site"
  if [ -n "${WHEEL:-}" ]; then
    python3 -m pip install --no-index --no-deps --no-compile --target "$work/site" "$WHEEL"
    return
  fi
  local options=(-Ccmake.define.JAX_CONVGRAD_CUDA=ON)
  python3 -c 'import importlib.metadata as m; m.version("onednn-devel-cpu-gomp")' 2> /dev/null ||
    options+=(-Ccmake.define.JAX_CONVGRAD_CPU=OFF)
  python3 -m pip install --no-index --no-build-isolation --no-deps --no-compile -v \
    --target "$work/site" "${options[@]}" "$root"
}

info() {
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
  echo "commit ${COMMIT:-$(git -C "$root" log -1 --format='%H %s' 2> /dev/null || echo unknown)}"
  python3 - << 'PYTHON'
import importlib.metadata, jax, jax.numpy as jnp
jax.block_until_ready(jnp.ones(8) + 1)
for name in ("jax", "jaxlib", "jax-cuda13-plugin", "nvidia-cudnn-cu13", "torch"):
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        print(name, "is not installed")
PYTHON
  (cd "$work" && python3 -m jax_convgrad info)
}

# From another folder, so that the installed package is the one tested. A file's slow tests are neighbors:
# a worker that has run out of tests takes over half of another's.
run_pytest() {
  export JAX_CONVGRAD_FAILURES="$out/failures.txt"
  local parallel=()
  [ "$jobs" -gt 1 ] && python3 -c 'import xdist' 2> /dev/null && parallel=(-n "$jobs" --dist worksteal)
  # XLA's timing of its own kernels, which chooses none of ours, would take two thirds of the suite's time.
  # Without it XLA's own matrix products, which the bench's tests hold the device with, are so slow that these
  # do not end: cuBLAS's do.
  local flags="${XLA_FLAGS:-} --xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
  (cd "$work" && XLA_FLAGS=$flags python3 -m pytest -q --durations 30 --rootdir "$root" -c "$root/pyproject.toml" "${parallel[@]}" "$@")
}

smoke() { run_pytest "$root/tests/cuda/test_lowering.py" "$root/tests/cuda/test_handlers.py"; }
tests() { (cd "$root/tests" && realpath ${TESTS:-.}) | xargs bash -c 'run_pytest -m "not large" "$@"' -; }
forced() { (cd "$root/tests" && realpath ${TESTS:-.}) | xargs bash -c 'run_pytest -m "not large" --backend cudnn "$@"' -; }
# A skipped row is a failure, except rows that take more GPUs than there are.
matrix() {
  python3 -c 'import jax; assert jax.default_backend() == "gpu", jax.default_backend()' || return 1
  JAX_CONVGRAD_REQUIRE_MATRIX=1 run_pytest -m matrix -rs "$root/tests"
}
large() { jobs=1 run_pytest -m large "$root/tests"; }

random() {
  export JAX_CONVGRAD_RANDOM_CASES=${RANDOM_CASES:-2000} JAX_CONVGRAD_RANDOM_FIRST=${RANDOM_FIRST:-0}
  export JAX_CONVGRAD_WIDE_CASES=${WIDE_CASES:-400}
  echo "$JAX_CONVGRAD_RANDOM_CASES problems from seed $JAX_CONVGRAD_RANDOM_FIRST, 50 to a test"
  run_pytest --backend cudnn "$root"/tests/conv/test_{random,wide}.py
}

installed() {
  JAX_CONVGRAD_INSTALL_CASES=${INSTALL_CASES:-1000} run_pytest "$root/tests/install/test_random.py"
}

# sanitized FILE TESTS [TOOL OPTION...] runs those of a file's tests under memcheck, or under a tool.
sanitized() {
  local file=$1 tests=$2
  shift 2
  [ $# -gt 0 ] || set -- memcheck --report-api-errors no
  # XLA's own tuning launches hundreds of kernels that are not ours.
  (
    cd "$work" && export XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_autotune_level=0"
    compute-sanitizer --tool "$@" --error-exitcode 9 \
      python3 -m pytest -q -p no:xdist --rootdir "$root" -c "$root/pyproject.toml" "$root/tests/$file" -k "$tests"
  )
}

sanitizer() {
  local status=0
  sanitized cuda/test_handlers.py "${SANITIZER_TESTS:-(exact and (stride or groups or odd or 1d or 3d) and (bfloat16 or float32)) or dilated_kernels_are_exact}" || status=1
  sanitized cuda/test_resample.py "${SANITIZER_RESAMPLE_TESTS:-random_problems or outside or zero or too_long or (definition and integers and (bfloat16 or float32))}" || status=1
  return "$status"
}

stress() {
  local status=0
  cd "$work" || return 1
  python3 "$root/benchmarks/stress_threads.py" --seconds "${THREADS_SECONDS:-60}" \
    --markdown "$out/stress_threads.md" --json "$out/stress_threads.json" || status=1
  python3 "$root/benchmarks/stress_memory.py" --seconds "${MEMORY_SECONDS:-240}" \
    --markdown "$out/stress_memory.md" --json "$out/stress_memory.json" || status=1
  return "$status"
}

first_call() {
  (cd "$work" && python3 "$root/benchmarks/first_call.py" --seconds "${FIRST_CALL_SECONDS:-300}" \
    --markdown "$out/first_call.md" --json "$out/first_call.json" ${FIRST_CALL_OPTIONS:-})
}

models() {
  (cd "$work" && python3 "$root/benchmarks/models.py" --markdown "$out/models.md" --json "$out/models.json" \
    ${MODELS_OPTIONS:-})
}

# train_run EXAMPLE NAME ARGUMENT... trains, and leaves what was printed and the picture in $out.
train_run() {
  local example=$1 name=$2
  shift 2
  printf '\n`examples/%s %s`\n\n' "$example" "$*" >> "$out/train.md"
  (cd "$work" && python3 "$root/examples/$example" --out "$work/train_$name" "$@") > "$work/train.txt"
  local status=$?
  # The picture's path is left out.
  grep -v '^wrote ' "$work/train.txt" | sed 's/^/    /' | tee -a "$out/train.md"
  cp "$work/train_$name"/*.png "$out/train_$name.png" 2> /dev/null
  return "$status"
}

train() {
  local status=0 gpus wide=(--steps 300 --batch 64 --patch 48 --width 128 --blocks 8)
  gpus=$(nvidia-smi --list-gpus | wc -l)
  printf '# The training examples\n\n%s\n' "$(nvidia-smi --query-gpu=name --format=csv,noheader)" > "$out/train.md"
  train_run train_superres.py full || status=1
  train_run train_superres.py wide "${wide[@]}" || status=1
  train_run train_superres.py depthwise "${wide[@]}" --body depthwise || status=1
  train_run train_superres.py resize "${wide[@]}" --up resize || status=1
  train_run train_gan.py gan || status=1
  train_run train_gan.py gan_wide --steps 300 --batch 256 --size 32 --width 64 || status=1
  if [ "$gpus" -gt 1 ]; then
    train_run train_superres.py devices "${wide[@]}" --devices "$gpus" || status=1
    train_run train_gan.py gan_devices --devices "$gpus" || status=1
  fi
  return "$status"
}

scaling() {
  local gpus n devices=1
  gpus=$(nvidia-smi --list-gpus | wc -l)
  for ((n = 2; n <= gpus; n *= 2)); do devices+=,$n; done
  cd "$work" && exec python3 -m jax_convgrad bench --devices "${DEVICES:-$devices}" \
    --json "$out/scaling.json" --markdown "$out/scaling.md" ${SCALING_OPTIONS:-}
}

engines() {
  (cd "$work" && python3 "$root/benchmarks/check_engines.py" --json "$out/engines.json" \
    --seconds "${ENGINES_SECONDS:-240}" --jobs "$jobs" ${ENGINES_OPTIONS:-})
}

ranks() {
  (cd "$work" && python3 "$root/benchmarks/rank_engines.py" --json "$out/ranks.json" ${RANKS_OPTIONS:-})
}

dense() {
  (cd "$work" && python3 "$root/benchmarks/dense_steps.py" --markdown "$out/dense_steps.md" \
    --json "$out/dense_steps.json" --seconds "${DENSE_SECONDS:-400}" ${DENSE_OPTIONS:-})
}

survey() {
  (cd "$work" && python3 "$root/benchmarks/survey_cuda.py" --json "$out/backends.json" \
    --seconds "${SURVEY_SECONDS:-500}" ${SURVEY_OPTIONS:---per-rule 8})
}

# With exec, so that a time limit ends, and waits for, this program itself: it then writes what it has.
bench() {
  cd "$work" && exec python3 -m jax_convgrad bench --json "$out/bench.json" --markdown "$out/bench.md" ${BENCH_OPTIONS:-}
}

thin_kernels() {
  local nvcc program=${THIN_KERNELS:-$work/thin_kernels}
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  if [ -z "${THIN_KERNELS:-}" ]; then
    # The kernels of warpgroups are for Hopper alone.
    (cd "$root" && for kernels in image windows; do
      "$nvcc" -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icpp \
        -c "cpp/cuda/kernels/thin/${kernels}_warpgroup.cu" -o "$program.$kernels.o" || exit 1
    done && "$nvcc" -std=c++17 -O3 -arch=native -Icpp benchmarks/thin_kernels.cu \
      cpp/cuda/kernels/thin/plan.cu "$program".*.o -o "$program") || return 1
  fi
  # One argument is all words that a row must have; commas divide them from the next.
  local rows=()
  [ -z "${THIN_ROWS:-}" ] || IFS=, read -ra rows <<< "$THIN_ROWS"
  "$program" "${rows[@]}" | tee "$out/thin_kernels.txt"
  return "${PIPESTATUS[0]}"
}

thin_tests() {
  JAX_CONVGRAD_THIN_CASES=${THIN_CASES:-10000} run_pytest "$root/tests/cuda/test_guarded.py" -k thin_kernels
}

thin_sanitizer() {
  local status=0
  export JAX_CONVGRAD_THIN_CASES=${THIN_SANITIZED:-60}
  sanitized cuda/test_guarded.py thin_kernels || status=1
  sanitized cuda/test_guarded.py thin_kernels racecheck || status=1
  return "$status"
}

gemm_tests() {
  JAX_CONVGRAD_GEMM_CASES=${GEMM_CASES:-10000} run_pytest "$root/tests/cuda/test_guarded.py" -k implicit_gemm_kernels
}

gemm_sanitizer() {
  local status=0
  export JAX_CONVGRAD_GEMM_CASES=${GEMM_SANITIZED:-60}
  sanitized cuda/test_guarded.py implicit_gemm_kernels || status=1
  sanitized cuda/test_guarded.py implicit_gemm_kernels racecheck || status=1
  return "$status"
}

thin_survey() {
  (cd "$work" && python3 "$root/benchmarks/survey_cuda.py" --cases "$root/benchmarks/thin_cases.json" \
    --only "${THIN_ONLY:- (bf16|f16) }" --backends cudnn,xla,gemm,torch --seconds "${THIN_SECONDS:-500}" \
    --json "$out/thin.json" | tee "$out/thin.txt")
}

failed=0
for step in "$@"; do
  # Only the names that the text above lists are steps.
  grep -q "^#   $step " "$root/scripts/gpu_run.sh" || { echo "no step is called $step" >&2; exit 2; }
  export -f "$step" run_pytest train_run sanitized
  start=$SECONDS
  export root out work jobs
  timeout -k 60 "${STEP_SECONDS:-600}" bash -c "$step" > "$out/$step.log" 2>&1
  status=$?
  [ $status -eq 0 ] || failed=1
  printf '%s: exit status %d, %d s\n' "$step" $status $((SECONDS - start)) | tee -a "$out/summary.txt"
  case $step in
    build) [ $status -eq 0 ] || grep -E 'error|Error' "$out/$step.log" | head -n 20 ;;
    info) cat "$out/$step.log" ;;
    *) tail -n "${TAIL:-15}" "$out/$step.log" ;;
  esac
done
exit $failed
