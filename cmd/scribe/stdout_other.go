//go:build !unix

package main

import (
	"os"
	"time"
)

// readerGone returns false: without polling of descriptors, only the next write can tell.
func readerGone(*os.File) bool { return false }

// awaitWritable returns true: without polling of descriptors, the write itself waits.
func awaitWritable(*os.File, time.Duration) bool { return true }

// windowColumns returns 0: the width is unknown.
func windowColumns(*os.File) int { return 0 }
