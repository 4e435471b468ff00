//go:build !unix

package main

import (
	"os"
	"time"
)

// unread is known only where descriptors can be polled; elsewhere the next write finds out.
func unread(*os.File) bool { return false }

// writable is known only where descriptors can be polled; elsewhere a write waits.
func writable(*os.File, time.Duration) bool { return true }
