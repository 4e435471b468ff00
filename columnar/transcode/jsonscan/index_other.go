//go:build !amd64 || purego

package jsonscan

// useAVX2 is false on machines without the assembly.
var useAVX2 = false

func indexAVX2(*Block, *byte, int) {}

func pairAVX2(_ *byte, n int, _, _ byte, _ int) (at int, pairs uint32) { return n, 0 }

func exponentAVX2(_ *byte, n int) (at int, pairs uint32) { return n, 0 }
