package encryption

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"scribe/internal/base/entropy"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
)

var (
	// ErrNoKey is the error of a key that was deleted, so that nothing that it encrypted can be read any more.
	ErrNoKey = layout.ErrNoKey
	// ErrWrapped means that a key exists, and that this process can't unwrap it: it has no key file, or not the right one.
	ErrWrapped = errors.New("encryption: the key can't be unwrapped")
	// ErrObject means that the object of a key is damaged, or of a newer version.
	ErrObject = errors.New("encryption: the key's object can't be read")
)

// Prefix begins the keys of all objects with keys in a store.
const Prefix = "keys/"

const (
	objectMagic = "scribe-key 1 "
	// maxObject bounds an object in bytes.
	maxObject = 16 << 10
	// maxCopies bounds how often a key may have been wrapped again.
	maxCopies = 1 << 20
)

// CategoryPrefix begins the keys of the objects with a category's keys.
func CategoryPrefix(category uint32) string { return fmt.Sprintf("%s%d/", Prefix, category) }

// objectKey returns the key of an object: the key's first one, or a later copy that another key wraps.
func (n keyName) objectKey(number int) string {
	return fmt.Sprintf("%s%d.%d", CategoryPrefix(n.category), n.generation, number)
}

// parseObjectKey is the inverse of objectKey.
func parseObjectKey(key string) (n keyName, number int, ok bool) {
	rest, ok := strings.CutPrefix(key, Prefix)
	category, rest, two := strings.Cut(rest, "/")
	generation, text, three := strings.Cut(rest, ".")
	c, err1 := strconv.ParseUint(category, 10, 32)
	g, err2 := strconv.ParseUint(generation, 10, 32)
	number, err3 := strconv.Atoi(text)
	n = keyName{category: uint32(c), generation: uint32(g)}
	ok = ok && two && three && errors.Join(err1, err2, err3) == nil && number >= 0 && number <= maxCopies && n.objectKey(number) == key
	return n, number, ok
}

// keyObject is what an object holds.
type keyObject struct {
	name keyName
	id   uint64
	// wrapper names the key that wraps it.
	wrapper string
	wrapped []byte
}

// label is what the wrapping is bound to, so that nobody can give one category the key of another.
func (o *keyObject) label() string {
	return fmt.Sprintf("%s%d %d %016x", objectMagic, o.name.category, o.name.generation, o.id)
}

func (o *keyObject) encode() []byte {
	return fmt.Appendf(nil, "%s %s %s\n", o.label(), o.wrapper, base64.StdEncoding.EncodeToString(o.wrapped))
}

func decodeObject(key string, content []byte) (*keyObject, error) {
	refuse := func(reason string) (*keyObject, error) {
		return nil, fmt.Errorf("%w: %s: %s: a newer program may have written it", ErrObject, key, reason)
	}
	text, ended := strings.CutSuffix(string(content), "\n")
	rest, known := strings.CutPrefix(text, objectMagic)
	fields := strings.Split(rest, " ")
	if !known || !ended || len(fields) != 5 {
		return refuse(fmt.Sprintf("want %q, category, generation, id, the name of the key that wraps it, and the key, in one line", objectMagic))
	}
	c, err1 := strconv.ParseUint(fields[0], 10, 32)
	g, err2 := strconv.ParseUint(fields[1], 10, 32)
	id, err3 := strconv.ParseUint(fields[2], 16, 64)
	wrapped, err4 := base64.StdEncoding.Strict().DecodeString(fields[4])
	if err := errors.Join(err1, err2, err3, err4, checkWrapperName(fields[3])); err != nil {
		return refuse(err.Error())
	}
	o := &keyObject{name: keyName{category: uint32(c), generation: uint32(g)}, id: id, wrapper: fields[3], wrapped: wrapped}
	if name, _, ok := parseObjectKey(key); !ok || name != o.name || string(o.encode()) != string(content) {
		return refuse(fmt.Sprintf("it holds %v, or in another form than it is written", o.name))
	}
	return o, nil
}

// readObject reads a key's object. The error matches blob.ErrNotFound if there is none.
func readObject(ctx context.Context, store blob.Store, key string) (*keyObject, error) {
	info, err := store.Stat(ctx, key)
	if err != nil {
		return nil, err
	}
	if info.Size > maxObject {
		return nil, fmt.Errorf("%w: %s has %d bytes, at most %d", ErrObject, key, info.Size, maxObject)
	}
	content := make([]byte, info.Size)
	if err := store.ReadAt(ctx, key, content, 0); err != nil {
		return nil, err
	}
	return decodeObject(key, content)
}

// findObject reads the newest object of a key. Mostly that is the first, which costs no listing. The error matches [ErrNoKey] if there is none.
func findObject(ctx context.Context, store blob.Store, name keyName) (*keyObject, error) {
	key := name.objectKey(0)
	for {
		o, err := readObject(ctx, store, key)
		if !errors.Is(err, blob.ErrNotFound) {
			return o, err
		}
		objects, err := listObjects(ctx, store, strings.TrimSuffix(name.objectKey(0), "0"))
		if err != nil {
			return nil, err
		}
		// A listing that has what a read no longer finds is old: there is a later copy, or none.
		if len(objects) == 0 || objects[len(objects)-1].key == key {
			return nil, fmt.Errorf("%w: %v is not in the store", ErrNoKey, name)
		}
		key = objects[len(objects)-1].key
	}
}

// storedObject is an object as a listing has it.
type storedObject struct {
	key    string
	name   keyName
	number int
	info   blob.Info
}

// listObjects lists objects, by category, generation and number.
func listObjects(ctx context.Context, store blob.Store, prefix string) (out []storedObject, err error) {
	for info, err := range store.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		if name, number, ok := parseObjectKey(info.Key); ok {
			out = append(out, storedObject{key: info.Key, name: name, number: number, info: info})
		}
	}
	slices.SortFunc(out, func(a, b storedObject) int {
		return cmp.Or(cmp.Compare(a.name.category, b.name.category), cmp.Compare(a.name.generation, b.name.generation), cmp.Compare(a.number, b.number))
	})
	return out, nil
}

// makeObject puts a new key into the store, unless another process is faster: whoever reads it then has what is stored.
func makeObject(ctx context.Context, store blob.Store, w Wrapper, name keyName, random *entropy.Source) error {
	secret, id := make([]byte, KeyLen), make([]byte, 8)
	random.Read(secret)
	random.Read(id)
	o := &keyObject{name: name, id: binary.LittleEndian.Uint64(id)}
	if err := wrapObject(ctx, w, o, secret); err != nil {
		return err
	}
	if err := store.Put(ctx, name.objectKey(0), o.encode()); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("encryption: put %v: %w", name, err)
	}
	return nil
}

func wrapObject(ctx context.Context, w Wrapper, o *keyObject, secret []byte) (err error) {
	if o.wrapper, o.wrapped, err = w.Wrap(ctx, secret, o.label()); err != nil {
		return fmt.Errorf("%w: wrap %v: %w", ErrWrapped, o.name, err)
	}
	if err := checkWrapperName(o.wrapper); err != nil {
		return fmt.Errorf("%w: %v: %w", ErrWrapped, o.name, err)
	}
	return nil
}
