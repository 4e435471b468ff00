// Package faults has only tests. They run cells of real processes, inject faults of machines, networks and disks, and check after each
// fault that the system's invariants hold. See docs/testing.md.
package faults
