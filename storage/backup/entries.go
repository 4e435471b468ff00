package backup

import (
	"encoding/binary"
	"fmt"

	"scribe/storage/kv"
)

// entriesBytes is how many bytes of entries a file holds before the next one begins; one entry may exceed it.
const entriesBytes = 4 << 20

// AppendEntry appends an entry of a control store, as files of a backup have them.
func AppendEntry(dst []byte, e kv.Entry) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(e.Key))), e.Key...)
	dst = binary.LittleEndian.AppendUint64(dst, e.Revision)
	return append(binary.AppendUvarint(dst, uint64(len(e.Value))), e.Value...)
}

// DecodeEntries calls fn with the entries of a file, in order. The values alias b. Errors of the format wrap ErrDamaged.
func DecodeEntries(b []byte, fn func(kv.Entry) error) error {
	d := decoder{rest: b}
	for len(d.rest) > 0 {
		e := kv.Entry{Key: string(d.take(d.varint("the length of a key", kv.MaxKey))), Revision: d.number()}
		e.Value = d.take(d.varint("the length of a value", kv.MaxValue))
		if d.err == nil && e.Key == "" {
			d.err = damagedError("an entry has no key")
		}
		if d.err != nil {
			return fmt.Errorf("entries of the control store: %w", d.err)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// EntriesWriter divides entries into files.
type EntriesWriter struct {
	// Write is called with the content of each file, in order. It must not keep the content.
	Write func(content []byte) error

	open []byte
}

// Add adds an entry.
func (w *EntriesWriter) Add(e kv.Entry) error {
	if w.open = AppendEntry(w.open, e); len(w.open) < entriesBytes {
		return nil
	}
	return w.Flush()
}

// Flush writes what was added since the last file.
func (w *EntriesWriter) Flush() error {
	if len(w.open) == 0 {
		return nil
	}
	err := w.Write(w.open)
	w.open = w.open[:0]
	return err
}
