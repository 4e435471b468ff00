// Package kvtest is the acceptance suite of package kv: what every engine must pass, as callers see it.
package kvtest
