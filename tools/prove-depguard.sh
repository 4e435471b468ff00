#!/usr/bin/env bash
# Shows that the import rules of .golangci.yml bite, and the one against global random sources: builds a tree of empty packages with the
# layout of this repository, plants imports and draws in it, and fails unless the linter reports each forbidden one and none of the allowed ones.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
lint=$(go -C "$root/tools" tool -n golangci-lint)

# importing folder, imported package
forbidden='
internal/base           internal/format/record
internal/base           internal/transport/rpc
internal/format         internal/transport/rpc
internal/format         storage/blob
internal/format/record  internal/format/pointer
internal/format/pointer internal/format/checkpoint
internal/format/checkpoint proto/scribe/v1
internal/transport      internal/role/budget
internal/transport      storage/metalog
internal/transport      producer
internal/role           internal/cell/catalog
internal/role           readproxy
internal/cell           producer
internal/cell           cmd/scribe/app
storage/metalog         internal/role/budget
producer                internal/role/budget
consumer                internal/cell/catalog
columnar                internal/format/pointer
columnar                storage/blob
proto                   internal/format/record
storage/blob            batcher
storage/metalog         producer
storage/metalog         columnar
storage/blob            cmd/scribe/app
producer                storage/blob
producer                batcher
producer                consumer
consumer                storage/metalog
consumer                readproxy
consumer                producer
scribed                 writeproxy
scribed                 producer
scribed/inputs          consumer
scribed/inputs          writeproxy
writeproxy              batcher
batcher                 writeproxy
batcher                 controlplane
readstream              readproxy
readproxy               readstream
retention               batcher
sequencer               readstream
sequencer               consumer
sqlserver               producer
sqlserver               readproxy
readstream              sqlserver
internal/cell           sqlserver
readstream              sequencer
internal/format/sequenced      storage/metalog
examples                internal/format/record
examples                sequencer
readproxy               retention
readproxy               consumer
controlplane            scribed
controlplane            cmd/scribe/app
batcher                 internal/testkit/s3test
storage/kv              internal/testkit/etcdtest
storage/metalog         go.etcd.io/etcd/client/v3
storage/etcd            go.etcd.io/etcd/server/v3/embed
cmd/scribe/app          go.etcd.io/etcd/server/v3/embed
'
allowed='
internal/format         internal/base/units
internal/transport      internal/format/pointer
internal/role           internal/transport/rpc
internal/role           storage/metalog
internal/cell           internal/role/budget
internal/format/pointer internal/format/record
internal/format/checkpoint internal/format/pointer
columnar                internal/format/record
internal/transport/rpc            proto/scribe/v1
storage/blob            internal/format/record
storage/metalog         internal/format/pointer
storage/metalog         internal/base/units
producer                proto/scribe/v1
consumer                columnar
batcher                 storage/blob
sequencer               storage/metalog
sequencer               internal/transport/rpc
sqlserver               columnar
sqlserver               consumer
scribed/inputs          producer
internal/format/sequenced      internal/format/pointer
examples                producer
examples                consumer
readproxy               columnar
cmd/scribe/app            batcher
cmd/scribe/app            controlplane
cmd/scribe              cmd/scribe/app
cmd/scribe              producer
test                    cmd/scribe/app
test                    readstream
test                    internal/testkit/s3test
storage/etcd            go.etcd.io/etcd/client/v3
storage/etcd/member     go.etcd.io/etcd/server/v3/embed
storage/kv/etcdkv       go.etcd.io/etcd/client/v3
'

# folder, imported package, expression
global_draws='
batcher             crypto/rand       rand.Text()
retention           crypto/rand       rand.Reader
cmd/scribe/app      crypto/rand       rand.Text()
scribed             math/rand/v2      rand.Uint64()
producer            math/rand/v2      rand.Float64()
internal/base       math/rand/v2      rand.N(7)
controlplane        hash/maphash      maphash.MakeSeed()
storage/metalog     math/rand/v2      rand.IntN(7)
'
own_draws='
batcher               math/rand/v2      rand.New(rand.NewPCG(1,2))
internal/base/entropy crypto/rand       rand.Reader
internal/base/entropy math/rand/v2      rand.Uint64()
storage/blob          crypto/rand       rand.Text()
cmd/scribe/bench      math/rand/v2      rand.Uint64()
'

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp "$root/.golangci.yml" "$tree/"
printf 'module scribe\n\ngo 1.26\n\nrequire go.etcd.io/etcd v0.0.0\n\nreplace go.etcd.io/etcd => ./etcd\n' >"$tree/go.mod"
# Stubs of what is not ours.
mkdir -p "$tree/etcd"
printf 'module go.etcd.io/etcd\n\ngo 1.26\n' >"$tree/etcd/go.mod"

failed=0
fail() {
	echo "prove-depguard: $*" >&2
	failed=1
}

# plant FOLDER PACKAGE: a package of its own below FOLDER, so that plants never form a cycle. Prints its path in the tree.
plant() {
	local at="$1/${2//\//_}_plant" path="scribe/$2"
	if [[ $2 == go.etcd.io/* ]]; then path=$2; fi
	mkdir -p "$tree/$at"
	printf 'package plant\n\nimport _ "%s"\n' "$path" >"$tree/$at/plant.go"
	echo "$at/plant.go"
}

# plant_draw FOLDER PACKAGE EXPRESSION: a package of its own below FOLDER that draws. Prints its path in the tree.
plant_draw() {
	local name
	name="draw_$(tr -c 'a-zA-Z0-9\n' _ <<<"$2_$3")"
	mkdir -p "$tree/$1/$name"
	printf 'package draw\n\nimport "%s"\n\nvar _ = %s\n' "$2" "$3" >"$tree/$1/$name/draw.go"
	echo "$1/$name/draw.go"
}

folders=$(printf '%s%s' "$forbidden" "$allowed" | tr -s ' ' '\n' | sort -u | sed '/^$/d')
for folder in $folders; do
	if [[ $folder == go.etcd.io/* ]]; then
		folder=${folder#go.etcd.io/}
		mkdir -p "$tree/$folder"
		printf 'package stub\n' >"$tree/$folder/stub.go"
		continue
	fi
	mkdir -p "$tree/$folder"
	printf 'package stub\n' >"$tree/$folder/stub.go"
	# A rule about a folder that is no longer there protects nothing.
	[ -d "$root/$folder" ] || fail "the rules speak of $folder/, which does not exist"
done
while read -r from to; do
	[ -z "$from" ] || plant "$from" "$to" >>"$tree/must-fail"
done <<<"$forbidden"
while read -r from to; do
	[ -z "$from" ] || plant "$from" "$to" >>"$tree/must-pass"
done <<<"$allowed"

while read -r folder package expression; do
	[ -z "$folder" ] || plant_draw "$folder" "$package" "$expression" >>"$tree/must-fail-draw"
done <<<"$global_draws"
while read -r folder package expression; do
	[ -z "$folder" ] || plant_draw "$folder" "$package" "$expression" >>"$tree/must-pass"
done <<<"$own_draws"

# The linter exits with 1 because it finds something; anything else is a failure of its own.
status=0
(cd "$tree" && "$lint" run --enable-only depguard,forbidigo --show-stats=false --path-mode abs ./... >report 2>errors) || status=$?
if [ "$status" -ne 1 ]; then
	cat "$tree/report" "$tree/errors" >&2
	fail "the linter ended with $status on planted violations, not with 1"
fi
while read -r file; do
	grep -q "/$file:.*(depguard)" "$tree/report" || fail "not reported, and should be: $file"
done <"$tree/must-fail"
while read -r file; do
	grep -q "/$file:.*(forbidigo)" "$tree/report" || fail "not reported, and should be: $file"
done <"$tree/must-fail-draw"
while read -r file; do
	if grep "/$file:" "$tree/report" >&2; then fail "reported, and should not be: $file"; fi
done <"$tree/must-pass"

[ "$failed" -eq 0 ] || exit 1
echo "prove-depguard: $(wc -l <"$tree/must-fail" | tr -d ' ') forbidden imports and $(wc -l <"$tree/must-fail-draw" | tr -d ' ') global draws reported, $(wc -l <"$tree/must-pass" | tr -d ' ') allowed ones not"
