#!/usr/bin/env bash
# All tests, in all their cases, with kernels that check every access, on arrays between guard pages
# (HLO_MLC_CHECK=1).
#
#     scripts/check_all.sh [OPTIONS OF PYTEST]
#
# Run by hand, about half an hour on two cores; .ci/run takes a sample. The first step has the tests
# that run kernels one by one, the second all others; each is run whatever the other comes to.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kernels=(tests/codegen tests/templates tests/runtime tests/schedule tests/ops)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=0

# step NAME ARGUMENTS…: runs pytest with checks, shows its output and keeps it in NAME.log.
step() {
  local name=$1
  shift
  echo "== $name"
  python -m pytest --check --all "$@" 2>&1 | tee "$logs/$name.log" || failed=1
}

rest=()
for path in tests/*/ tests/test_*.py; do
  path=${path%/}
  [[ " ${kernels[*]} " == *" $path "* || $path == */__pycache__ ]] || rest+=("$path")
done
step kernels "${kernels[@]}" "$@"
step programs "${rest[@]}" "$@"

for name in kernels programs; do
  echo "== $name: $(tail -n 1 "$logs/$name.log")"
  grep -E '^(FAILED|ERROR) ' "$logs/$name.log"
  grep -hoE "hlo_mlc: kernel .*" "$logs/$name.log" | sort -u | head -n 20
done
exit "$failed"
