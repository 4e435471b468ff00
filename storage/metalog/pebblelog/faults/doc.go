// Package faults holds the tests of package pebblelog on failing disks. An engine that failed leaks goroutines on purpose (see
// its guard.go), so these tests are separate from those that look for leaks.
package faults
