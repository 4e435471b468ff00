// Package faults has no code of its own: its tests run cells of real processes, do to them what machines, networks and disks do, and
// prove after each fault that what the system promises still holds. See docs/testing.md.
package faults
