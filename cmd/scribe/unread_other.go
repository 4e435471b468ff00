//go:build !unix

package main

import "os"

// unread is known only where descriptors can be polled; elsewhere the next write finds out.
func unread(*os.File) bool { return false }
