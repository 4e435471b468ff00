// Package faults holds the tests of package pebblelog on disks that fail. An engine that failed leaves goroutines behind, on
// purpose (see guard.go there), so these tests are apart from those that look for leaks.
package faults
