#!/usr/bin/env bash
# Shows that the import rules of .golangci.yml bite: builds a tree of empty packages with the layout of this repository, plants
# imports in it, and fails unless the linter reports each forbidden one and none of the allowed ones.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
lint=$(go -C "$root/tools" tool -n golangci-lint)

# importing folder, imported package
forbidden='
internal/record         internal/pointer
internal/pointer        internal/checkpoint
internal/pointer        storage/blob
internal/checkpoint     proto/scribe/v1
columnar                internal/pointer
columnar                storage/blob
proto                   internal/record
internal/rpc            internal/pointer
storage/blob            batcher
storage/metalog         producer
storage/metalog         columnar
storage/blob            internal/app
producer                storage/blob
producer                batcher
producer                consumer
consumer                storage/metalog
consumer                readproxy
consumer                producer
scribed                 writeproxy
scribed                 producer
writeproxy              batcher
batcher                 writeproxy
batcher                 controlplane
readstream              readproxy
readproxy               readstream
collector               batcher
sequencer               readstream
sequencer               consumer
gateway                 consumer
gateway                 readproxy
readstream              gateway
internal/support        gateway
readstream              sequencer
internal/sequenced      storage/metalog
examples                internal/record
examples                sequencer
readproxy               collector
readproxy               consumer
controlplane            scribed
controlplane            internal/app
internal/support        batcher
internal/support        internal/app
batcher                 internal/s3test
'
allowed='
internal/pointer        internal/record
internal/checkpoint     internal/pointer
columnar                internal/record
internal/rpc            proto/scribe/v1
storage/blob            internal/record
storage/metalog         internal/pointer
storage/metalog         internal/support
producer                proto/scribe/v1
consumer                columnar
batcher                 storage/blob
sequencer               storage/metalog
sequencer               internal/rpc
gateway                 columnar
internal/sequenced      internal/pointer
examples                producer
examples                consumer
readproxy               columnar
internal/app            batcher
internal/app            controlplane
cmd/scribe              internal/app
cmd/scribe              producer
test                    internal/app
test                    readstream
test                    internal/s3test
'

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp "$root/.golangci.yml" "$tree/"
printf 'module scribe\n\ngo 1.26\n' >"$tree/go.mod"

failed=0
fail() {
	echo "prove-depguard: $*" >&2
	failed=1
}

# plant FOLDER PACKAGE: a package of its own below FOLDER, so that plants never form a cycle. Prints its path in the tree.
plant() {
	local at="$1/${2//\//_}_plant"
	mkdir -p "$tree/$at"
	printf 'package plant\n\nimport _ "scribe/%s"\n' "$2" >"$tree/$at/plant.go"
	echo "$at/plant.go"
}

folders=$(printf '%s%s' "$forbidden" "$allowed" | tr -s ' ' '\n' | sort -u | sed '/^$/d')
for folder in $folders; do
	mkdir -p "$tree/$folder"
	printf 'package stub\n' >"$tree/$folder/stub.go"
	# A rule about a folder that is no longer there protects nothing. internal/support stands for any support package.
	[ "$folder" = internal/support ] || [ -d "$root/$folder" ] || fail "the rules speak of $folder/, which does not exist"
done
while read -r from to; do
	[ -z "$from" ] || plant "$from" "$to" >>"$tree/must-fail"
done <<<"$forbidden"
while read -r from to; do
	[ -z "$from" ] || plant "$from" "$to" >>"$tree/must-pass"
done <<<"$allowed"

# The linter exits with 1 because it finds something; anything else is a failure of its own.
status=0
(cd "$tree" && "$lint" run --enable-only depguard --show-stats=false --path-mode abs ./... >report 2>errors) || status=$?
if [ "$status" -ne 1 ]; then
	cat "$tree/report" "$tree/errors" >&2
	fail "the linter ended with $status on planted violations, not with 1"
fi
while read -r file; do
	grep -q "/$file:.*(depguard)" "$tree/report" || fail "not reported, and should be: $file"
done <"$tree/must-fail"
while read -r file; do
	if grep "/$file:" "$tree/report" >&2; then fail "reported, and should not be: $file"; fi
done <"$tree/must-pass"

[ "$failed" -eq 0 ] || exit 1
echo "prove-depguard: $(wc -l <"$tree/must-fail" | tr -d ' ') forbidden imports reported, $(wc -l <"$tree/must-pass" | tr -d ' ') allowed ones not"
