package blob

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// IdentityKey is the key of the one object that tells a store from others (docs/format/blob.md). Whoever uses a store first puts it there; nobody
// deletes it.
const IdentityKey = "store/identity"

const (
	identityMagic = "scribe-store 1 "
	// identityLength is that of an identity, in characters of base32.
	identityLength = 26
	identitySize   = len(identityMagic) + identityLength + 1
)

// ErrIdentity means that the object under IdentityKey is damaged, or of a newer version.
var ErrIdentity = errors.New("blob: the store's identity can't be read")

// EncodeIdentity returns the object's content. It fails for an identity that is not of 26 characters A to Z and 2 to 7.
func EncodeIdentity(identity string) ([]byte, error) {
	if !validIdentity(identity) {
		return nil, fmt.Errorf("%w: invalid identity %q: want %d characters A to Z and 2 to 7", ErrIdentity, excerpt(identity), identityLength)
	}
	return []byte(identityMagic + identity + "\n"), nil
}

// DecodeIdentity returns the identity in an object's content. The error wraps ErrIdentity.
func DecodeIdentity(content []byte) (string, error) {
	text := string(content)
	rest, known := strings.CutPrefix(text, identityMagic)
	identity, ended := strings.CutSuffix(rest, "\n")
	if !known || !ended || !validIdentity(identity) {
		return "", fmt.Errorf("%w: %s holds %q: want %q, %d characters A to Z and 2 to 7, and a line feed: a newer program may have written it", ErrIdentity, IdentityKey, excerpt(text),
			identityMagic, identityLength)
	}
	return identity, nil
}

func validIdentity(identity string) bool {
	return len(identity) == identityLength && strings.Trim(identity, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// ReadIdentity returns the store's identity; "" if it has none, since nobody has used it.
func ReadIdentity(ctx context.Context, s Store) (string, error) {
	identity, err := readIdentity(ctx, s)
	if errors.Is(err, ErrNotFound) {
		return "", nil
	}
	return identity, err
}

// Identify returns the store's identity. A store without one gets the one that draw returns, unless another process is faster.
func Identify(ctx context.Context, s Store, draw func() string) (string, error) {
	identity, err := readIdentity(ctx, s)
	if !errors.Is(err, ErrNotFound) {
		return identity, err
	}
	content, err := EncodeIdentity(draw())
	if err != nil {
		return "", err
	}
	// What is stored counts: a put with an unknown outcome is told apart at the next call.
	if err := s.Put(ctx, IdentityKey, content); err != nil && !errors.Is(err, ErrExists) {
		return "", err
	}
	return readIdentity(ctx, s)
}

func readIdentity(ctx context.Context, s Store) (string, error) {
	info, err := s.Stat(ctx, IdentityKey)
	if err != nil {
		return "", err
	}
	content := make([]byte, min(info.Size, int64(identitySize)+1)) // what is longer is refused
	if err := s.ReadAt(ctx, IdentityKey, content, 0); err != nil {
		return "", err
	}
	return DecodeIdentity(content)
}
