package encryption_test

import (
	"testing"

	"scribe/internal/base/entropy"
	"scribe/internal/format/pointer"
	"scribe/storage/blob/encryption/encryptiontest"
)

// BenchmarkBlock encrypts and decrypts a block of 256 KiB, as it is after compression.
func BenchmarkBlock(b *testing.B) {
	w := newWorld()
	k := w.keys(b, encryptiontest.KeyFile(b, "k1"))
	key := writing(b, k, 7, 1)
	plain := make([]byte, 256<<10)
	entropy.NewSeeded(1, "block").Read(plain)
	stored := key.AppendBlock(nil, pointer.CodecZstd, plain, 1<<20)
	b.Run("encrypt", func(b *testing.B) {
		b.SetBytes(int64(len(plain)))
		dst := make([]byte, 0, len(stored))
		for b.Loop() {
			dst = key.AppendBlock(dst[:0], pointer.CodecZstd, plain, 1<<20)
		}
	})
	b.Run("decrypt", func(b *testing.B) {
		b.SetBytes(int64(len(plain)))
		for b.Loop() {
			if _, err := k.DecryptBlock(b.Context(), pointer.CodecEncryptedZstd, stored, 1<<20); err != nil {
				b.Fatal(err)
			}
		}
	})
}
