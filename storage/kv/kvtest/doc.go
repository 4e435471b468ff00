// Package kvtest is the acceptance suite of package kv: the tests that every engine must pass.
package kvtest
