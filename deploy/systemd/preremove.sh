#!/bin/sh
# Stops services before their program goes, not at an upgrade. Data and users stay: what an agent has not forwarded is there only.
set -e
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now scribe.service scribe-agent.service
fi
