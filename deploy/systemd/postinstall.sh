#!/bin/sh
# Users and units of a new package. Services that run go on with the former program until somebody restarts them: who runs a cell decides
# when its processes are replaced, one at a time.
set -e
# Without systemd, as in a container, there are no services that need them.
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers /usr/lib/sysusers.d/scribe.conf
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
