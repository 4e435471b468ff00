#!/usr/bin/env bash
# Makes the Python environment of the suite beside it, outside of the repository, and prints the path of its interpreter. With --installed
# it makes nothing, and fails when there is none. One is made for each requirements.txt: SCRIBE_PYTHON_ENV names the folder that they are in,
# by default scribe/python in the user's cache.
set -euo pipefail
requirements=$(cd "$(dirname "$0")" && pwd)/requirements.txt
home=${SCRIBE_PYTHON_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/scribe/python}
env=$home/$(sha256sum "$requirements" | cut -c1-16)
if [ ! -e "$env/complete" ]; then
	[ "${1:-}" != --installed ] || exit 1
	rm -rf "$env"
	mkdir -p "$home"
	python3 -m venv "$env"
	"$env/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: -r "$requirements" >&2
	touch "$env/complete"
fi
echo "$env/bin/python"
