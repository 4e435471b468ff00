#!/usr/bin/env bash
# Builds a release from the present commit: tools/release.sh VERSION [FOLDER [PLATFORM...]], for example tools/release.sh 1.2.3. Into FOLDER
# (default: bin/release-VERSION) go the program for each platform (default: linux/amd64 linux/arm64 darwin/arm64), packages for Debian and Red
# Hat, a list of what is in the program (SBOM, CycloneDX), the chart for Kubernetes, and SHA256SUMS. The same commit, version and Go version give the same bytes,
# wherever the repository lies.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
	echo "release: $*" >&2
	exit 1
}

version=${1:-}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || die "want a version such as 1.2.3 or 1.3.0-rc.1, not \"$version\": tools/release.sh VERSION [FOLDER [PLATFORM...]]"
out=${2:-bin/release-$version}
[ $# -le 2 ] && platforms=(linux/amd64 linux/arm64 darwin/arm64) || platforms=("${@:3}")
[ -z "$(git status --porcelain)" ] || die "there are files or changes that are not committed: commit, stash or remove them"
[ ! -e "$out" ] || die "$out exists: remove it, or name another folder"

commit=$(git rev-parse HEAD)
commit_date=$(TZ=UTC0 git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
umask 022
mkdir -p "$out"

# The tools run here, whatever they are given: not with the platform that is built for.
nfpm=$(GOFLAGS=-buildvcs=false go -C tools/release tool -n nfpm)
sbom=$(GOFLAGS=-buildvcs=false go -C tools/release tool -n cyclonedx-gomod)

for platform in "${platforms[@]}"; do
	os=${platform%/*} arch=${platform#*/}
	program=$out/scribe-$version-$os-$arch
	echo "$program"
	GOOS=$os GOARCH=$arch go build -o "$program" \
		-ldflags "-s -w -X main.version=$version -X main.commit=$commit -X main.commitDate=$commit_date" ./cmd/scribe
	# Without a serial number, which would be random, and with the time of the commit.
	"$sbom" bin -json -noserial -notimestamp -std -version "$version" -output "$program.cdx.json" "$program"
	[ "$os" = linux ] || continue
	for format in deb rpm; do
		VERSION=$version GOARCH=$arch PROGRAM=$program "$nfpm" package --config deploy/nfpm.yaml --packager "$format" --target "$out/"
	done
done

echo "$out/scribe-$version.tgz"
tools/chart.sh "$version" "$out/scribe-$version.tgz"

(cd "$out" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
cat "$out/SHA256SUMS"
