//go:build !unix

package app

func maxDescriptors() int { return 0 }
