#!/usr/bin/env bash
# Packs the chart for Kubernetes: tools/chart.sh VERSION FILE. The same files, version and SOURCE_DATE_EPOCH give the same bytes.
set -euo pipefail
[ $# -eq 2 ] || { echo "chart: want tools/chart.sh VERSION FILE" >&2; exit 1; }
version=$1 file=$(realpath "$2")
cd "$(dirname "$0")/.."

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
# With what its links lead to: rules and dashboards.
cp -RL deploy/helm/scribe "$stage/scribe"
# What .helmignore leaves out.
rm -r "$stage/scribe/ci"
sed -i "s/^version: .*/version: $version/; s/^appVersion: .*/appVersion: $version/; /^# Of a checkout/d" "$stage/scribe/Chart.yaml"
tar -C "$stage" --format=ustar --sort=name --mtime="@${SOURCE_DATE_EPOCH:-0}" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -c scribe | gzip -9n >"$file"
