//go:build amd64 && !purego

#include "textflag.h"

// For each low nibble the byte that is white space, and the one that is, with bit 5 set, one of { } [ ] : , ; where there is none, a byte of
// another nibble. Bytes from 0x80 look up 0, which they are not.
DATA spaces<>+0(SB)/8, $0x0101010101010220
DATA spaces<>+8(SB)/8, $0x01010D01010A0901
GLOBL spaces<>(SB), RODATA|NOPTR, $16
DATA ops<>+0(SB)/8, $0x0000000000000000
DATA ops<>+8(SB)/8, $0x00007D2C7B3A0000
GLOBL ops<>(SB), RODATA|NOPTR, $16
DATA quote<>+0(SB)/1, $0x22
GLOBL quote<>(SB), RODATA|NOPTR, $1
DATA back<>+0(SB)/1, $0x5C
GLOBL back<>(SB), RODATA|NOPTR, $1
DATA control<>+0(SB)/1, $0x1F
GLOBL control<>(SB), RODATA|NOPTR, $1
DATA bit5<>+0(SB)/1, $0x20
GLOBL bit5<>(SB), RODATA|NOPTR, $1

// MASK leaves in R the bits of the classes in A (the lower 32 bytes) and B.
#define MASK(A, B, R) \
	VPMOVMSKB A, R  \
	VPMOVMSKB B, R15 \
	SHLQ      $32, R15 \
	ORQ       R15, R

// func indexAVX2(dst *Block, src *byte, n int)
TEXT ·indexAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VPBROADCASTB quote<>(SB), Y8
	VPBROADCASTB back<>(SB), Y9
	VPBROADCASTB control<>(SB), Y10
	VPBROADCASTB bit5<>(SB), Y11
	VBROADCASTI128 spaces<>(SB), Y12
	VBROADCASTI128 ops<>(SB), Y13

loop:
	TESTQ CX, CX
	JLE   done
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1

	VPCMPEQB Y8, Y0, Y2
	VPCMPEQB Y8, Y1, Y3
	MASK(Y2, Y3, AX) // quotes
	VPCMPEQB Y9, Y0, Y4
	VPCMPEQB Y9, Y1, Y5
	MASK(Y4, Y5, BX) // backslashes
	VPMINUB  Y10, Y0, Y2
	VPMINUB  Y10, Y1, Y3
	VPCMPEQB Y0, Y2, Y2
	VPCMPEQB Y1, Y3, Y3
	MASK(Y2, Y3, DX) // controls
	ORQ  BX, AX
	ORQ  DX, AX
	MOVQ AX, 0(DI)
	MOVQ BX, 8(DI)
	MOVQ DX, 16(DI)

	VPOR     Y11, Y0, Y2
	VPOR     Y11, Y1, Y3
	VPSHUFB  Y0, Y13, Y4
	VPSHUFB  Y1, Y13, Y5
	VPCMPEQB Y2, Y4, Y4
	VPCMPEQB Y3, Y5, Y5
	MASK(Y4, Y5, AX)
	NOTQ DX
	ANDQ DX, AX // controls that have bit 5 clear look like : and ,
	MOVQ AX, 24(DI)

	VPSHUFB  Y0, Y12, Y4
	VPSHUFB  Y1, Y12, Y5
	VPCMPEQB Y0, Y4, Y4
	VPCMPEQB Y1, Y5, Y5
	MASK(Y4, Y5, AX)
	MOVQ AX, 32(DI)

	MASK(Y0, Y1, AX)
	MOVQ AX, 40(DI)

	ADDQ $64, SI
	ADDQ $48, DI
	DECQ CX
	JMP  loop

done:
	VZEROUPPER
	RET

// func pairAVX2(p *byte, n int, first, last byte, dist int) (at int, pairs uint32)
TEXT ·pairAVX2(SB), NOSPLIT, $0-44
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ dist+24(FP), DX
	VPBROADCASTB first+16(FP), Y8
	VPBROADCASTB last+17(FP), Y9
	LEAQ (SI)(DX*1), DI
	XORQ AX, AX

pairs:
	CMPQ AX, CX
	JGE  none
	VPCMPEQB (SI)(AX*1), Y8, Y0
	VPCMPEQB (DI)(AX*1), Y9, Y1
	VPAND    Y0, Y1, Y0
	VPMOVMSKB Y0, BX
	TESTL BX, BX
	JNZ   some
	ADDQ  $32, AX
	JMP   pairs

none:
	XORL BX, BX

some:
	MOVQ AX, at+32(FP)
	MOVL BX, pairs+40(FP)
	VZEROUPPER
	RET

DATA zero<>+0(SB)/1, $0x30
GLOBL zero<>(SB), RODATA|NOPTR, $1
DATA nine<>+0(SB)/1, $0x09
GLOBL nine<>(SB), RODATA|NOPTR, $1
DATA letterE<>+0(SB)/1, $0x65
GLOBL letterE<>(SB), RODATA|NOPTR, $1

// func exponentAVX2(p *byte, n int) (at int, pairs uint32)
TEXT ·exponentAVX2(SB), NOSPLIT, $0-28
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	VPBROADCASTB zero<>(SB), Y8
	VPBROADCASTB nine<>(SB), Y9
	VPBROADCASTB bit5<>(SB), Y10
	VPBROADCASTB letterE<>(SB), Y11
	XORQ AX, AX

places:
	CMPQ AX, CX
	JGE  nowhere
	VMOVDQU  (SI)(AX*1), Y0
	VPOR     1(SI)(AX*1), Y10, Y1
	VPSUBB   Y8, Y0, Y0
	VPMINUB  Y9, Y0, Y2
	VPCMPEQB Y0, Y2, Y0
	VPCMPEQB Y11, Y1, Y1
	VPAND    Y0, Y1, Y0
	VPMOVMSKB Y0, BX
	TESTL BX, BX
	JNZ   found
	ADDQ  $32, AX
	JMP   places

nowhere:
	XORL BX, BX

found:
	MOVQ AX, at+16(FP)
	MOVL BX, pairs+24(FP)
	VZEROUPPER
	RET
