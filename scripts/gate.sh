#!/usr/bin/env bash
# Fails where this checkout is slower than another commit, on this machine.
#
#   scripts/gate.sh BASE OUT [BENCH_OPTION...]
#
# Installs BASE and the checkout into folders of their own and runs `python -m jax_convgrad bench` with each, in turns,
# RUNS times (default 3); the options go to it. Then benchmarks/gate.py compares: a pass may be SLOWER times as slow
# (default 1.03). OUT has the results. What the builds and jax need must be installed, as for scripts/gpu_run.sh. Whether
# the CUDA module is built, build_backend/convgrad_build.py decides: JAX_CONVGRAD_CUDA=0 or 1 overrules it.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
base=${1:?which commit to compare with}
out=$(mkdir -p "${2:?where to write}" && cd "$2" && pwd)
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"; git -C "$root" worktree prune' EXIT
rm -f "$out"/{base,here}-*.json
git -C "$root" worktree add --quiet --detach "$work/base" "$base"

declare -A trees=([base]="$work/base" [here]="$root")
for side in base here; do
  python3 -m pip install -q --no-build-isolation --no-deps --no-compile --target "$work/$side-site" "${trees[$side]}"
done

cd "$work"
for ((run = 1; run <= ${RUNS:-3}; run++)); do
  for side in base here; do
    PYTHONPATH="$work/$side-site" python3 -m jax_convgrad bench --forms ours --json "$out/$side-$run.json" "$@"
  done
done
PYTHONPATH="$work/here-site" python3 "$root/benchmarks/gate.py" --slower "${SLOWER:-1.03}" \
  --old "$out"/base-*.json --new "$out"/here-*.json
