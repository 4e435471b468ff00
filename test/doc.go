// Package test looks at the system from outside: through the real binary, over every way to put it together.
package test
