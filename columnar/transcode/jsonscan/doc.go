// Package jsonscan has the parts of a JSON reader that look at every byte: an index of where strings and structure are, made 64
// bytes at a time, and on top of it steps over strings, containers and numbers.
//
// # Index
//
// [Index.Reset] looks at each byte once and leaves, for each block of 64, one word a class of bytes: a [Block]. AVX2 does it where the machine has it; the
// build tag purego, other machines, and [UsePortable] take the same index made eight bytes at a time. Nothing else depends on the machine, and no
// byte outside of the slice is read.
//
// # Strictness
//
// What is checked where follows the rules of rows that do not fit (docs/columnar/transcoding.md). Structure is brackets, separators, strings that end and have no control
// characters: [Index.StringEnd] and [Index.Skip] check it, and nothing else. What stands inside a value, the grammar of numbers ([Number]) and of escapes ([AppendUnescaped]),
// matters to the one who wants the value. UTF-8 is checked by the caller; [Index.ASCII] says where there is nothing to check.
package jsonscan
