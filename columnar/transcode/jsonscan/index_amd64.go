//go:build amd64 && !purego

package jsonscan

import "golang.org/x/sys/cpu"

// useAVX2 says that this machine runs the assembly. Tests turn it off to compare.
var useAVX2 = cpu.X86.HasAVX2 && cpu.X86.HasPOPCNT

// indexAVX2 makes n blocks of n times 64 bytes at src. It reads and writes nothing else.
//
//go:noescape
func indexAVX2(dst *Block, src *byte, n int)

// pairAVX2 looks at n positions from p on, n a multiple of 32, for the byte first with last dist bytes after it. It returns the position
// of the 32 positions in which the first such pair is, and a bit for each pair in them; n and 0 if there is none. It reads n+dist bytes.
//
//go:noescape
func pairAVX2(p *byte, n int, first, last byte, dist int) (at int, pairs uint32)

// exponentAVX2 is pairAVX2 for a decimal digit and an e or E right after it. It reads n+1 bytes.
//
//go:noescape
func exponentAVX2(p *byte, n int) (at int, pairs uint32)
