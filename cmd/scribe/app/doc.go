// Package app puts a process together: it reads the configuration, starts the roles in the order of their needs, gives each what it
// needs of the others, serves them, and ends them in the opposite order.
//
// modules.go has the table of roles; it is the file to read first. A dependency on a role that is in the same process is that role's
// object, any other a client: see Wiring.
package app
