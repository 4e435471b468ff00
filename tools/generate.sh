#!/usr/bin/env bash
# Rebuilds the Go code under proto/ from the .proto files, with the tools pinned in tools/proto/go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."

# Into a folder aside first: a compile error in a .proto file must leave the generated code of before in place.
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
go tool -modfile=tools/proto/go.mod buf generate --output "$out"

# What is left over from a .proto file that was removed or renamed goes; the rest is replaced.
find proto -name '*.pb.go' -o -name '*.connect.go' | while read -r file; do
	[ -e "$out/$file" ] || rm -f "$file"
done
cp -R "$out/proto/." proto/
