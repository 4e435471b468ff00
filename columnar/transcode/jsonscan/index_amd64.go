//go:build amd64 && !purego

package jsonscan

import "golang.org/x/sys/cpu"

// useAVX2 selects the assembly. Tests turn it off to compare results.
var useAVX2 = cpu.X86.HasAVX2 && cpu.X86.HasPOPCNT

// indexAVX2 makes n blocks from n times 64 bytes at src. It reads and writes nothing else.
//
//go:noescape
func indexAVX2(dst *Block, src *byte, n int)

// pairAVX2 searches n positions from p on, n a multiple of 32, for the byte first followed by last at distance dist. It returns
// the position of the group of 32 positions with the first match, and one bit per match in that group. Without a match it returns
// n and 0. It reads n+dist bytes.
//
//go:noescape
func pairAVX2(p *byte, n int, first, last byte, dist int) (at int, pairs uint32)

// exponentAVX2 is pairAVX2 for a decimal digit directly followed by e or E. It reads n+1 bytes.
//
//go:noescape
func exponentAVX2(p *byte, n int) (at int, pairs uint32)
