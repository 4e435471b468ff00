package encryption

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
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
	offSalt       = 20
	offNonce      = 36
	offText       = 48

	blockVersion = 1
	aes256GCM    = 1
	tagLen       = 16
)

// The format's overhead is that of the pointer's limits.
var _ = [1]struct{}{}[offText+tagLen-pointer.EncryptionOverhead]

// KeyLen is the length of a key in bytes.
const KeyLen = 32

// keyName names a key. The id is random: a generation of a category's key may have been made by several processes at once, or again after it
// was deleted.
type keyName struct {
	category, generation uint32
	id                   uint64
}

func (n keyName) String() string {
	return fmt.Sprintf("key %d of category %d, id %016x", n.generation, n.category, n.id)
}

// salt is what a process derives a key of its own with. So nonces, which are random, have to be unique among the blocks that one process writes
// in the lifetime of a key in its memory, not among all that a category ever has.
type salt [offNonce - offSalt]byte

// Key is a generation of a category's key. It is safe for concurrent use.
type Key struct {
	name   keyName
	secret []byte
	random *entropy.Source
	// own is derived with salt, for blocks that this process writes.
	salt salt
	own  cipher.AEAD
}

func newKey(name keyName, secret []byte, random *entropy.Source) (*Key, error) {
	if len(secret) != KeyLen {
		return nil, fmt.Errorf("encryption: %v has %d bytes, want %d", name, len(secret), KeyLen)
	}
	k := &Key{name: name, secret: secret, random: random}
	random.Read(k.salt[:])
	var err error
	k.own, err = k.deriveKey(k.salt)
	return k, err
}

// deriveKey returns the key of a salt: HKDF with SHA-256 (RFC 5869).
func (k *Key) deriveKey(s salt) (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, k.secret, s[:], "scribe block", KeyLen)
	if err != nil {
		return nil, fmt.Errorf("encryption: %v: %w", k.name, err)
	}
	c, err := aes.NewCipher(derived)
	if err != nil {
		return nil, fmt.Errorf("encryption: %v: %w", k.name, err)
	}
	return cipher.NewGCM(c)
}

// AppendBlock appends to dst the encrypted form of a block of rawLen bytes that is compressed with codec. It is
// [pointer.EncryptionOverhead] longer than compressed, which it must not overlap.
func (k *Key) AppendBlock(dst []byte, codec pointer.Codec, compressed []byte, rawLen int) []byte {
	start := len(dst)
	dst = append(dst, blockVersion, aes256GCM, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, k.name.category)
	dst = binary.LittleEndian.AppendUint32(dst, k.name.generation)
	dst = binary.LittleEndian.AppendUint64(dst, k.name.id)
	dst = append(dst, k.salt[:]...)
	var nonce [offText - offNonce]byte
	k.random.Read(nonce[:])
	dst = append(dst, nonce[:]...)
	header := boundHeader(dst[start:], codec, rawLen)
	return k.own.Seal(dst, nonce[:], compressed, header[:])
}

// boundHeader returns what the tag covers beside the block: its header without the nonce, its compression and its length.
func boundHeader(stored []byte, codec pointer.Codec, rawLen int) (b [offNonce + 5]byte) {
	copy(b[:], stored[:offNonce])
	b[offNonce] = byte(codec.Compression())
	binary.LittleEndian.PutUint32(b[offNonce+1:], uint32(rawLen)) //nolint:gosec // at most pointer.MaxBlockRaw
	return b
}

// parseBlock returns the key that an encrypted block names.
func parseBlock(stored []byte) (keyName, error) {
	if len(stored) < pointer.EncryptionOverhead {
		return keyName{}, fmt.Errorf("%w: an encrypted block has at least %d bytes, this one %d", layout.ErrDamaged, pointer.EncryptionOverhead, len(stored))
	}
	if v := stored[offVersion]; v != blockVersion || stored[offAlgorithm] != aes256GCM || stored[offReserved] != 0 || stored[offReserved+1] != 0 {
		return keyName{}, fmt.Errorf("%w: an encrypted block begins with %x, want %x: a newer program may have written it",
			layout.ErrVersion, stored[:offCategory], []byte{blockVersion, aes256GCM, 0, 0})
	}
	name := keyName{
		category: binary.LittleEndian.Uint32(stored[offCategory:]), generation: binary.LittleEndian.Uint32(stored[offGeneration:]),
		id: binary.LittleEndian.Uint64(stored[offKeyID:]),
	}
	if name.id == 0 {
		return keyName{}, fmt.Errorf("%w: no key has the id 0", layout.ErrDamaged)
	}
	return name, nil
}

func (k *Key) decryptBlock(codec pointer.Codec, stored []byte, rawLen int) ([]byte, error) {
	aead, err := k.deriveKey(salt(stored[offSalt:offNonce]))
	if err != nil {
		return nil, err
	}
	header := boundHeader(stored, codec, rawLen)
	out, err := aead.Open(make([]byte, 0, len(stored)-pointer.EncryptionOverhead), stored[offNonce:offText], stored[offText:], header[:])
	if err != nil {
		return nil, fmt.Errorf("%w: the block was not encrypted so with %v", layout.ErrDamaged, k.name)
	}
	return out, nil
}

// DecryptBlock implements [layout.Decrypter]. The errors match [ErrNoKey], [ErrWrapped], layout.ErrDamaged and layout.ErrVersion, or are those of the store.
func (k *Keys) DecryptBlock(ctx context.Context, codec pointer.Codec, stored []byte, rawLen int) ([]byte, error) {
	name, err := parseBlock(stored)
	if err != nil {
		return nil, err
	}
	key, err := k.readingKey(ctx, name)
	if err != nil {
		return nil, err
	}
	return key.decryptBlock(codec, stored, rawLen)
}
