// Package test tests the system as its users see it: through the real binary, in every deployment from one process to ten.
package test
