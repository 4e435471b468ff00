package keyring

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	"scribe/internal/base/entropy"
	"scribe/storage/blob/encryption"
)

// Config is what [Open] needs.
type Config struct {
	// Dir is the folder of the keys. It is made with the first one.
	Dir string
	// FS is the file system; nil is the real one.
	FS vfs.FS
	// Wrapper wraps the keys; nil: nothing is encrypted, and the keys that are there can't be used.
	Wrapper encryption.Wrapper
	// Random draws keys and nonces; nil is the machine's randomness.
	Random *entropy.Source
}

var (
	// ErrNoKey says that the key of something is not in the folder. Its file was lost; nothing else is known to be wrong.
	ErrNoKey = errors.New("keyring: the key is not there")
	// ErrDeleted says that the key of something was deleted, so that nobody reads it any more.
	ErrDeleted = errors.New("keyring: the key was deleted")
	// ErrNotAuthentic says that bytes were not encrypted so with the key that they name.
	ErrNotAuthentic = errors.New("keyring: not encrypted so with its key")
)

// FolderName is how the folder of the keys is called, beside what they encrypt.
const FolderName = "keys"

const (
	// Overhead is by how many bytes encrypted bytes are longer: the id of the key, the nonce, and the tag.
	Overhead = idLen + nonceLen + tagLen

	idLen    = 8
	nonceLen = 12
	tagLen   = 16

	// maxUses bounds what is encrypted with a key: nonces are random.
	maxUses = 1 << 31
	// maxKeys bounds the keys of a folder, and so those in memory.
	maxKeys = 1 << 17
	// wrapTimeout bounds a question to the wrapper.
	wrapTimeout = 30 * time.Second
)

// Stored describes a key in the folder.
type Stored struct {
	// File is the name of its file.
	File string
	// From is the least number of what the key may have encrypted, To the first number of the next run.
	From, To uint64
	ID       uint64
	Category string
	// Wrapper names the key that wraps it.
	Wrapper string
	// Deleted: only its name is left.
	Deleted bool
	// Err says why the file can't be read; nil if it can. Then its name says From and ID.
	Err error
}

func (s *Stored) String() string { return fmt.Sprintf("key %016x of category %s", s.ID, s.Category) }

// Key encrypts. It is safe for concurrent use.
type Key struct {
	id     uint64
	aead   cipher.AEAD
	random *entropy.Source
	uses   atomic.Int64
}

func newKey(id uint64, secret []byte, random *entropy.Source) (*Key, error) {
	if len(secret) != encryption.KeyLen {
		return nil, fmt.Errorf("%w: it has %d bytes, want %d", encryption.ErrWrapped, len(secret), encryption.KeyLen)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &Key{id: id, aead: aead, random: random}, err
}

// AppendEncrypted appends the encrypted form of plain, which is [Overhead] longer and bound to other bytes: they must be the same to decrypt it. dst
// must not overlap plain.
func (k *Key) AppendEncrypted(dst, plain, bound []byte) []byte {
	k.uses.Add(1)
	dst = binary.LittleEndian.AppendUint64(dst, k.id)
	at := len(dst)
	dst = append(dst, make([]byte, nonceLen)...)
	nonce := dst[at:len(dst):len(dst)]
	k.random.Read(nonce)
	return k.aead.Seal(dst, nonce, plain, bound)
}

// keyEntry is a key of the folder.
type keyEntry struct {
	stored  Stored
	wrapped []byte
	key     *Key // nil until it was needed
}

// Keyring has the keys of a folder, which one process uses. It is safe for concurrent use.
type Keyring struct {
	cfg      Config
	encrypts bool
	from     uint64 // of this run

	// making is held while a key is made or unwrapped, also during I/O. mu is taken under it.
	making sync.Mutex
	mu     struct {
		sync.Mutex
		keys    map[uint64]*keyEntry // by id
		writing map[string]*Key      // by category
	}
}

// Open reads the folder. It unwraps no key. Files of keys that can't be read are told by [Keyring.List].
func Open(cfg Config) (*Keyring, error) {
	if cfg.FS == nil {
		cfg.FS = vfs.Default
	}
	k := &Keyring{cfg: cfg, encrypts: cfg.Wrapper != nil}
	k.mu.keys, k.mu.writing = map[uint64]*keyEntry{}, map[string]*Key{}
	if k.cfg.Wrapper == nil {
		k.cfg.Wrapper = encryption.NoWrapper{}
	}
	names, err := cfg.FS.List(cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	for _, name := range names {
		from, id, ok := parseFileName(name)
		if !ok {
			continue
		}
		if len(k.mu.keys) == maxKeys {
			return nil, fmt.Errorf("keyring: %s has more than %d keys", cfg.Dir, maxKeys)
		}
		e, err := readKeyFile(cfg.FS, cfg.FS.PathJoin(cfg.Dir, name))
		switch {
		case errors.Is(err, errKeyFile):
			e = &keyEntry{stored: Stored{Err: err}}
		case err != nil:
			return nil, fmt.Errorf("keyring: %w", err)
		case e.stored.From != from || e.stored.ID != id:
			e.stored.Err = fmt.Errorf("%w: %s holds %v of run %d", errKeyFile, name, &e.stored, e.stored.From)
		}
		e.stored.File, e.stored.From, e.stored.ID = name, from, id
		k.mu.keys[id] = e
	}
	return k, nil
}

// Encrypts reports whether there is something that wraps keys. A nil keyring encrypts nothing.
func (k *Keyring) Encrypts() bool { return k != nil && k.encrypts }

// BeginRun says that what is encrypted from now on has numbers from a number, which is above all of before. It is called once, before the first
// WritingKey.
func (k *Keyring) BeginRun(from uint64) { k.from = from }

// List returns the keys of the folder, by run and category.
func (k *Keyring) List() []Stored {
	k.mu.Lock()
	out := make([]Stored, 0, len(k.mu.keys))
	for _, e := range k.mu.keys {
		out = append(out, e.stored)
	}
	k.mu.Unlock()
	slices.SortFunc(out, func(a, b Stored) int {
		return cmp.Or(cmp.Compare(a.From, b.From), strings.Compare(a.Category, b.Category), cmp.Compare(a.ID, b.ID))
	})
	next := uint64(math.MaxUint64)
	for i := len(out) - 1; i >= 0; i-- {
		out[i].To = next
		if i > 0 && out[i-1].From != out[i].From {
			next = out[i].From
		}
	}
	return out
}

// Count returns how many keys the folder has.
func (k *Keyring) Count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.keys)
}

// WritingKey returns the key for what is written of a category, and makes it at the first call. The error may pass; nothing may be written then.
func (k *Keyring) WritingKey(category string) (*Key, error) {
	if key := k.writingKey(category); key != nil {
		return key, nil
	}
	k.making.Lock()
	defer k.making.Unlock()
	if key := k.writingKey(category); key != nil { // made meanwhile
		return key, nil
	}
	key, err := k.makeKey(category)
	if err != nil {
		return nil, fmt.Errorf("make a key for category %s: %w", category, err)
	}
	return key, nil
}

// writingKey returns the key of a category; nil if there is none, or if it was used too often.
func (k *Keyring) writingKey(category string) *Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key := k.mu.writing[category]; key != nil && key.uses.Load() < maxUses {
		return key
	}
	return nil
}

// makeKey makes a key, whose file is durable when it returns.
func (k *Keyring) makeKey(category string) (*Key, error) {
	if n := k.Count(); n >= maxKeys {
		return nil, fmt.Errorf("%s has %d keys, which is the most", k.cfg.Dir, n)
	}
	secret, id := make([]byte, encryption.KeyLen), make([]byte, idLen)
	k.cfg.Random.Read(secret)
	k.cfg.Random.Read(id)
	e := &keyEntry{stored: Stored{From: k.from, ID: max(binary.LittleEndian.Uint64(id), 1), Category: category}}
	e.stored.File = fileName(e.stored.From, e.stored.ID)
	ctx, cancel := context.WithTimeout(context.Background(), wrapTimeout)
	defer cancel()
	var err error
	if e.stored.Wrapper, e.wrapped, err = k.cfg.Wrapper.Wrap(ctx, secret, e.stored.label()); err != nil {
		return nil, err
	}
	if e.key, err = newKey(e.stored.ID, secret, k.cfg.Random); err != nil {
		return nil, err
	}
	if _, err := decodeFile(e.encode()); err != nil { // a wrapper may give its key a name that the format does not have
		return nil, fmt.Errorf("wrapped with %q: %w", e.stored.Wrapper, err)
	}
	if err := durable.CreateFolder(k.cfg.FS, k.cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := writeKeyFile(k.cfg.FS, k.cfg.Dir, e); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.keys[e.stored.ID], k.mu.writing[category] = e, e.key
	return e.key, nil
}

// Decrypt decrypts what AppendEncrypted has appended, in place. A nil keyring has no keys. The error matches ErrNoKey, ErrDeleted, ErrNotAuthentic (then the bytes are overwritten) or
// encryption.ErrWrapped, or is that of the wrapper.
func (k *Keyring) Decrypt(category string, stored, bound []byte) ([]byte, error) {
	if len(stored) < Overhead {
		return nil, fmt.Errorf("%w: %d bytes are too few", ErrNotAuthentic, len(stored))
	}
	id := binary.LittleEndian.Uint64(stored)
	if k == nil {
		return nil, fmt.Errorf("%w: %016x of category %s: there is no folder of keys", ErrNoKey, id, category)
	}
	key, err := k.readingKey(category, id)
	if err != nil {
		return nil, err
	}
	const text = idLen + nonceLen // where it begins
	plain, err := key.aead.Open(stored[text:text], stored[idLen:text], stored[text:], bound)
	if err != nil {
		return nil, fmt.Errorf("%w: key %016x of category %s", ErrNotAuthentic, id, category)
	}
	return slices.Clip(plain), nil
}

func (k *Keyring) readingKey(category string, id uint64) (*Key, error) {
	k.mu.Lock()
	e := k.mu.keys[id]
	var key *Key
	if e != nil {
		key = e.key
	}
	k.mu.Unlock()
	switch {
	case e == nil:
		return nil, fmt.Errorf("%w: %016x of category %s is not in %s: put its file back from a copy of the folder", ErrNoKey, id, category, k.cfg.Dir)
	case e.stored.Err != nil:
		return nil, fmt.Errorf("%w: %016x of category %s: %w: put its file back from a copy of the folder", ErrNoKey, id, category, e.stored.Err)
	case e.stored.Category != category:
		return nil, fmt.Errorf("%w: it names %v, and is of category %s", ErrNotAuthentic, &e.stored, category)
	case e.stored.Deleted:
		return nil, fmt.Errorf("%w: %v", ErrDeleted, &e.stored)
	case key != nil:
		return key, nil
	}
	return k.unwrapKey(e)
}

// unwrapKey unwraps a key, if no other call has done it.
func (k *Keyring) unwrapKey(e *keyEntry) (*Key, error) {
	k.making.Lock()
	defer k.making.Unlock()
	k.mu.Lock()
	key := e.key
	k.mu.Unlock()
	if key != nil {
		return key, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), wrapTimeout)
	defer cancel()
	secret, err := k.cfg.Wrapper.Unwrap(ctx, e.stored.Wrapper, e.wrapped, e.stored.label())
	if err != nil {
		return nil, fmt.Errorf("%v, wrapped with %s: %w", &e.stored, e.stored.Wrapper, err)
	}
	if key, err = newKey(e.stored.ID, secret, k.cfg.Random); err != nil {
		return nil, fmt.Errorf("%v, wrapped with %s: %w", &e.stored, e.stored.Wrapper, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	e.key = key
	return key, nil
}

// Check unwraps the keys that are needed, and returns an error for the first one that can't be.
func (k *Keyring) Check(needed func(Stored) bool) error {
	for _, s := range k.List() {
		if s.Deleted || s.Err != nil || !needed(s) { // whether anything needs a key of an unreadable file is found out when it is read
			continue
		}
		if _, err := k.readingKey(s.Category, s.ID); err != nil {
			return err
		}
	}
	return nil
}

// Prune removes the keys that nothing needs any more: used reports whether anything has a number from From to below To. It also
// removes files that were not completed.
func (k *Keyring) Prune(used func(from, to uint64) bool) error {
	names, err := k.cfg.FS.List(k.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	goes := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasSuffix(name, keySuffix+".tmp") })
	for _, s := range k.List() {
		if !used(s.From, s.To) {
			goes = append(goes, s.File)
			k.mu.Lock()
			delete(k.mu.keys, s.ID)
			k.mu.Unlock()
		}
	}
	errs := []error{err}
	for _, name := range goes {
		if err := k.cfg.FS.Remove(k.cfg.FS.PathJoin(k.cfg.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if len(goes) > 0 {
		errs = append(errs, durable.SyncFolder(k.cfg.FS, k.cfg.Dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("keyring: remove keys that nothing needs: %w", err)
	}
	return nil
}

// Delete deletes the keys of a category in a folder that no process uses: what they encrypted can't be read from then on. Their names stay, so
// that what they encrypted is not taken for damage.
func Delete(fsys vfs.FS, dir, category string) (deleted int, err error) {
	k, err := Open(Config{Dir: dir, FS: fsys})
	if err != nil {
		return 0, err
	}
	for _, s := range k.List() {
		if s.Category != category || s.Deleted || s.Err != nil {
			continue
		}
		s.Deleted, s.Wrapper = true, ""
		if err := writeKeyFile(k.cfg.FS, dir, &keyEntry{stored: s}); err != nil {
			return deleted, fmt.Errorf("keyring: delete %v: %w", &s, err)
		}
		deleted++
	}
	return deleted, nil
}

func writeKeyFile(fsys vfs.FS, dir string, e *keyEntry) error {
	return durable.ReplaceFile(fsys, fsys.PathJoin(dir, e.stored.File), func(w io.Writer) error {
		_, err := w.Write(e.encode())
		return err
	})
}

// readKeyFile reads the file of a key. The error matches errKeyFile if that is not what was written.
func readKeyFile(fsys vfs.FS, path string) (e *keyEntry, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if e, err = decodeFile(content); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return e, nil
}
