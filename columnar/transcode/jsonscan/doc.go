// Package jsonscan contains the parts of a JSON reader that look at every byte: an index of strings and structure, built 64 bytes
// at a time, and functions on top of it that skip strings, containers and numbers.
//
// # Index
//
// [Index.Reset] reads each byte once. For each block of 64 bytes it produces a [Block]: one word per class of bytes. It uses AVX2
// if the machine has it. With the build tag purego, on other machines, and under [UsePortable], the same index is built eight
// bytes at a time. Nothing else depends on the machine, and no byte outside the slice is read.
//
// # Strictness
//
// What is checked where follows the rules for rows that do not fit (docs/columnar/transcoding.md). Structure means brackets,
// separators, and strings that end and contain no control characters; [Index.StringEnd] and [Index.Skip] check exactly that. The
// content of a value, such as the grammar of numbers ([Scalar]) and of escapes ([AppendUnescaped]), is checked by the reader of
// the value. The caller checks UTF-8; [Index.ASCII] says where no check is needed.
package jsonscan
