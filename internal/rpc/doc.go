// Package rpc is the plumbing between processes: Go interfaces for the services of package scribev1, adapters that serve and
// call them with Connect, HTTP servers and clients with the limits and protocols of this system, and errors with a
// machine-readable reason.
//
// A role implements the interface of its service with plain methods. The roles that need it hold the same interface, so package
// app hands them either the role itself (one process) or a client from this package (several): the code is the same. For that,
// the streaming calls are written with callbacks: a server calls send, a client's send is the caller's function.
//
// Requests and answers belong to the callee and the caller respectively once handed over; bytes inside a request may be used
// by the callee only until it returns, since the caller reuses them.
package rpc
