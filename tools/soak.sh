#!/usr/bin/env bash
# Runs new seeds of the simulator on all processors, and keeps the plan and the timeline of each that fails.
#
#   tools/soak.sh            two hours, failures in ./soak
#   tools/soak.sh 10h DIR
set -euo pipefail
folder=$(realpath -m "${2:-soak}")
mkdir -p "$folder"
cd "$(dirname "$0")/.."
binary=$(mktemp)
trap 'rm -f "$binary"' EXIT
CGO_ENABLED=0 go test -c -o "$binary" ./test/sim
"$binary" -test.run '^TestSeeds$' -test.timeout 0 -test.v -soak "${1:-2h}" -first-seed "$(date +%s)" -minutes 10 -keep "$folder"
