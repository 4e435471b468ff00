#!/usr/bin/env bash
# Looks for known vulnerabilities in what the program is made of: its modules and the Go version that builds it. Ends with 3 if there are any.
# tools/check-vulnerabilities.sh [VERSION], the version of the database: a commit of golang.org/x/vulndb, by default the latest. The database
# comes as a Go module, so it can be had where nothing but a module proxy can. Not a part of CI: what is found today was no mistake of a change.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:-latest}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
govulncheck=$(go -C tools/release tool -n govulncheck)
# Outside of the module: the database is none of its dependencies.
database=$(cd "$work" && go mod download -json "golang.org/x/vulndb@$version" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
[ -d "$database/data/osv" ] || { echo "check-vulnerabilities: golang.org/x/vulndb@$version has no database: give another version" >&2; exit 1; }
echo "database: $(basename "$database"), $(find "$database/data/osv" -name '*.json' | wc -l) entries"
# Of the program, with its symbols: what the linker left out is not reported.
go build -o "$work/scribe" ./cmd/scribe
"$govulncheck" -mode=binary -db "file://$database/data/osv" "$work/scribe"
