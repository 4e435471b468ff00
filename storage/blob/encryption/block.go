package encryption

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"

	"scribe/internal/base/entropy"
	"scribe/internal/format/pointer"
	"scribe/storage/blob/layout"
)

// Offsets of the fields of an encrypted block. All integers are little-endian.
const (
	offVersion    = 0
	offAlgorithm  = 1
	offReserved   = 2
	offCategory   = 4
	offGeneration = 8
	offKeyID      = 12
	offNonce      = 20
	offText       = 32

	blockVersion = 1
	aes256GCM    = 1
	tagLen       = 16
)

// The format's overhead is that of the pointer's limits.
var _ = [1]struct{}{}[offText+tagLen-pointer.EncryptionOverhead]

// KeyLen is the length of a key in bytes.
const KeyLen = 32

// keyName names a generation of a category's key.
type keyName struct{ category, generation uint32 }

func (n keyName) String() string {
	return fmt.Sprintf("key %d of category %d", n.generation, n.category)
}

// Key is a generation of a category's key. It is safe for concurrent use.
type Key struct {
	name keyName
	// id tells it from another one of the same name, after that was deleted.
	id     uint64
	aead   cipher.AEAD
	random *entropy.Source
}

func newKey(name keyName, id uint64, secret []byte, random *entropy.Source) (*Key, error) {
	if len(secret) != KeyLen {
		return nil, fmt.Errorf("encryption: %v has %d bytes, want %d", name, len(secret), KeyLen)
	}
	c, err := aes.NewCipher(secret)
	if err != nil {
		return nil, fmt.Errorf("encryption: %v: %w", name, err)
	}
	aead, err := cipher.NewGCM(c)
	if err != nil {
		return nil, fmt.Errorf("encryption: %v: %w", name, err)
	}
	return &Key{name: name, id: id, aead: aead, random: random}, nil
}

// AppendBlock appends to dst the encrypted form of a block of rawLen bytes that is compressed with codec. It is
// [pointer.EncryptionOverhead] longer than compressed, which it must not overlap.
func (k *Key) AppendBlock(dst []byte, codec pointer.Codec, compressed []byte, rawLen int) []byte {
	start := len(dst)
	dst = append(dst, blockVersion, aes256GCM, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, k.name.category)
	dst = binary.LittleEndian.AppendUint32(dst, k.name.generation)
	dst = binary.LittleEndian.AppendUint64(dst, k.id)
	var nonce [offText - offNonce]byte
	k.random.Read(nonce[:])
	dst = append(dst, nonce[:]...)
	header := sealedHeader(dst[start:], codec, rawLen)
	return k.aead.Seal(dst, nonce[:], compressed, header[:])
}

// sealedHeader returns what the tag covers beside the block: its header without the nonce, its compression and its length.
func sealedHeader(stored []byte, codec pointer.Codec, rawLen int) (b [offNonce + 5]byte) {
	copy(b[:], stored[:offNonce])
	b[offNonce] = byte(codec.Compression())
	binary.LittleEndian.PutUint32(b[offNonce+1:], uint32(rawLen)) //nolint:gosec // at most pointer.MaxBlockRaw
	return b
}

// blockHeader is what an encrypted block says about its key.
type blockHeader struct {
	name keyName
	id   uint64
}

func parseBlock(stored []byte) (blockHeader, error) {
	if len(stored) < pointer.EncryptionOverhead {
		return blockHeader{}, fmt.Errorf("%w: an encrypted block has at least %d bytes, this one %d", layout.ErrDamaged, pointer.EncryptionOverhead, len(stored))
	}
	if v := stored[offVersion]; v != blockVersion || stored[offAlgorithm] != aes256GCM || stored[offReserved] != 0 || stored[offReserved+1] != 0 {
		return blockHeader{}, fmt.Errorf("%w: an encrypted block begins with %x, want %x: a newer program may have written it",
			layout.ErrVersion, stored[:offCategory], []byte{blockVersion, aes256GCM, 0, 0})
	}
	return blockHeader{
		name: keyName{category: binary.LittleEndian.Uint32(stored[offCategory:]), generation: binary.LittleEndian.Uint32(stored[offGeneration:])},
		id:   binary.LittleEndian.Uint64(stored[offKeyID:]),
	}, nil
}

func (k *Key) decryptBlock(h blockHeader, codec pointer.Codec, stored []byte, rawLen int) ([]byte, error) {
	if k.id != h.id {
		return nil, fmt.Errorf("%w: %v with the id %016x is gone, the store has one with the id %016x", ErrNoKey, h.name, h.id, k.id)
	}
	header := sealedHeader(stored, codec, rawLen)
	out, err := k.aead.Open(make([]byte, 0, len(stored)-pointer.EncryptionOverhead), stored[offNonce:offText], stored[offText:], header[:])
	if err != nil {
		return nil, fmt.Errorf("%w: the block was not encrypted so with %v", layout.ErrDamaged, h.name)
	}
	return out, nil
}

// DecryptBlock implements [layout.Decrypter]. The errors match [ErrNoKey], [ErrWrapped], layout.ErrDamaged and layout.ErrVersion, or are those of the store.
func (k *Keys) DecryptBlock(ctx context.Context, codec pointer.Codec, stored []byte, rawLen int) ([]byte, error) {
	h, err := parseBlock(stored)
	if err != nil {
		return nil, err
	}
	key, err := k.readingKey(ctx, h.name)
	if err != nil {
		return nil, err
	}
	return key.decryptBlock(h, codec, stored, rawLen)
}
