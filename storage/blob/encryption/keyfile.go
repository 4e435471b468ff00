package encryption

import (
	"bufio"
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"scribe/internal/base/entropy"
)

// Wrapper encrypts keys with keys of its own: those of a file, or of a service that never gives them out. It is safe for concurrent use.
type Wrapper interface {
	// Wrap encrypts a key, bound to a label, and names the key that it did it with, in 1 to 200 printable ASCII characters without spaces.
	Wrap(ctx context.Context, key []byte, label string) (name string, wrapped []byte, err error)
	// Unwrap is the inverse.
	Unwrap(ctx context.Context, name string, wrapped []byte, label string) (key []byte, err error)
	// Current names the key that Wrap uses.
	Current(ctx context.Context) (name string, err error)
}

// maxWrapperName bounds the name of a key that wraps others.
const maxWrapperName = 200

func checkWrapperName(name string) error {
	strange := strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r > '~' })
	if name == "" || len(name) > maxWrapperName || strange >= 0 {
		return fmt.Errorf("invalid name of a key: want 1 to %d printable ASCII characters without spaces", maxWrapperName)
	}
	return nil
}

// Bounds of a key file.
const (
	maxKeyFile  = 64 << 10
	maxFileKeys = 100
)

// KeyFile is a [Wrapper] with the keys of a file: a line for each, its name and 32 bytes in base64. The first one wraps, all unwrap; so a new
// key is put before the old ones, which stay until everything is wrapped again. Empty lines and those that begin with '#' do not count.
//
// The file is read for each key, which is rare; so it may change at any time, best by renaming another one to it. Not everybody on the machine
// may be allowed to read it.
type KeyFile struct {
	Path string
	// Random draws nonces; nil is the machine's randomness.
	Random *entropy.Source
}

// NewFileKey returns a line of a key file with a new key.
func NewFileKey(name string, random *entropy.Source) (string, error) {
	if err := checkWrapperName(name); err != nil || strings.HasPrefix(name, "#") {
		return "", errors.Join(fmt.Errorf("encryption: %q can't be the name of a key", name), err)
	}
	key := make([]byte, KeyLen)
	random.Read(key)
	return name + " " + base64.StdEncoding.EncodeToString(key) + "\n", nil
}

// fileKey is a line of a key file.
type fileKey struct {
	name string
	aead cipher.AEAD
}

func (f KeyFile) readKeys() ([]fileKey, error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: open the key file: %w", ErrWrapped, err)
	}
	defer func() { _ = file.Close() }()
	if err := checkPermissions(file); err != nil {
		return nil, fmt.Errorf("%w: key file %s: %w", ErrWrapped, f.Path, err)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("%w: read the key file: %w", ErrWrapped, err)
	}
	keys, err := parseKeyFile(text)
	if err != nil {
		return nil, fmt.Errorf("%w: key file %s: %w", ErrWrapped, f.Path, err)
	}
	return keys, nil
}

// checkPermissions refuses a file that everybody on the machine may read or change. A group may: a container's platform gives files to one.
func checkPermissions(file *os.File) error {
	if runtime.GOOS == "windows" { // its permissions are not in the mode
		return nil
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if mode := info.Mode(); mode.IsRegular() && mode.Perm()&0o007 != 0 {
		return fmt.Errorf("everybody on this machine may open it (mode %#o): chmod o= takes that away", mode.Perm())
	}
	return nil
}

// parseKeyFile reads the lines. Its errors never have any part of a key.
func parseKeyFile(text []byte) (keys []fileKey, err error) {
	if len(text) > maxKeyFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxKeyFile)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxKeyFile+1)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, secret, two := strings.Cut(line, " ")
		key, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(secret))
		if !two || err != nil || len(key) != KeyLen {
			return nil, fmt.Errorf("line %d: want the name of a key, a space, and %d bytes in base64: scribe key new NAME makes one", number, KeyLen)
		}
		if err := checkWrapperName(name); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if slices.ContainsFunc(keys, func(k fileKey) bool { return k.name == name }) {
			return nil, fmt.Errorf("line %d: there are two keys of the name %s", number, name)
		}
		if len(keys) == maxFileKeys {
			return nil, fmt.Errorf("line %d: more than %d keys", number, maxFileKeys)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		keys = append(keys, fileKey{name, aead})
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no key: scribe key new NAME makes one")
	}
	return keys, lines.Err()
}

// Check returns an error if the file can't be used.
func (f KeyFile) Check() error {
	_, err := f.readKeys()
	return err
}

// Current implements Wrapper.
func (f KeyFile) Current(context.Context) (string, error) {
	keys, err := f.readKeys()
	if err != nil {
		return "", err
	}
	return keys[0].name, nil
}

// Wrap implements Wrapper.
func (f KeyFile) Wrap(_ context.Context, key []byte, label string) (string, []byte, error) {
	keys, err := f.readKeys()
	if err != nil {
		return "", nil, err
	}
	nonce := make([]byte, keys[0].aead.NonceSize())
	f.Random.Read(nonce)
	return keys[0].name, keys[0].aead.Seal(nonce, nonce, key, []byte(label)), nil
}

// Unwrap implements Wrapper.
func (f KeyFile) Unwrap(_ context.Context, name string, wrapped []byte, label string) ([]byte, error) {
	keys, err := f.readKeys()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(keys, func(k fileKey) bool { return k.name == name })
	if i < 0 {
		return nil, fmt.Errorf("%w: key file %s has no key %s", ErrWrapped, f.Path, name)
	}
	n := keys[i].aead.NonceSize()
	if len(wrapped) < n {
		return nil, fmt.Errorf("%w: %d bytes are too few", ErrWrapped, len(wrapped))
	}
	key, err := keys[i].aead.Open(nil, wrapped[:n], wrapped[n:], []byte(label))
	if err != nil {
		return nil, fmt.Errorf("%w: it was not wrapped with the key %s that key file %s has", ErrWrapped, name, f.Path)
	}
	return key, nil
}

// NoWrapper is the [Wrapper] of a process that was given none.
type NoWrapper struct{}

// errNoWrapper says what to do.
var errNoWrapper = fmt.Errorf("%w: this process has no key file (--encryption-key-file)", ErrWrapped)

// Current implements Wrapper.
func (NoWrapper) Current(context.Context) (string, error) { return "", errNoWrapper }

// Wrap implements Wrapper.
func (NoWrapper) Wrap(context.Context, []byte, string) (string, []byte, error) {
	return "", nil, errNoWrapper
}

// Unwrap implements Wrapper.
func (NoWrapper) Unwrap(context.Context, string, []byte, string) ([]byte, error) {
	return nil, errNoWrapper
}
