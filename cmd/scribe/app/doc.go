// Package app assembles a process: it reads the configuration, starts the roles in the order of their dependencies, passes each role the
// parts that it needs from others, serves them, and stops them in reverse order.
//
// Start reading in modules.go, which has the table of roles. A dependency on a role of the same process is that role's object; any other is
// a client: see Wiring.
package app
