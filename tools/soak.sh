#!/usr/bin/env bash
# Runs new seeds of the simulator on all processors, and keeps the plan and the timeline of each that fails.
#
#   tools/soak.sh                               two hours, failures in ./soak
#   tools/soak.sh 10h DIR
#   tools/soak.sh 2h DIR -draw nodes            cells of three nodes; what follows DIR goes to the tests, and overrides what is below
#   tools/soak.sh 2h DIR -draw hour,nodes -minutes 3
set -euo pipefail
case "${1:-}" in -*)
	sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
	exit 2
	;;
esac
folder=$(realpath -m "${2:-soak}")
mkdir -p "$folder"
cd "$(dirname "$0")/.."
binary=$(mktemp)
trap 'rm -f "$binary"' EXIT
CGO_ENABLED=0 go test -c -o "$binary" ./test/sim
"$binary" -test.run '^TestSeeds$' -test.timeout 0 -test.v -soak "${1:-2h}" -first-seed "$(date +%s)" -minutes 10 -keep "$folder" "${@:3}"
