package keyring

import (
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"net/url"
	"strconv"
	"strings"
)

// errKeyFile says that a file is not what was written.
var errKeyFile = errors.New("damaged, or written by a newer program")

const (
	fileMagic = "scribe-agent-key 1 "
	keySuffix = ".key"
	// maxFile bounds a file in bytes.
	maxFile = 16 << 10
	// maxCategory bounds the name of a category in bytes.
	maxCategory = 255
	// deletedMark stands for the name of the wrapping key and the wrapped key of one that was deleted.
	deletedMark = "- -"
)

// fileName returns the name of a key's file.
func fileName(from, id uint64) string { return fmt.Sprintf("%020d-%016x%s", from, id, keySuffix) }

// parseFileName is the inverse of fileName. It returns false for names of other files.
func parseFileName(name string) (from, id uint64, ok bool) {
	first, rest, two := strings.Cut(name, "-")
	second, ok := strings.CutSuffix(rest, keySuffix)
	from, err1 := strconv.ParseUint(first, 10, 64)
	id, err2 := strconv.ParseUint(second, 16, 64)
	return from, id, ok && two && id != 0 && errors.Join(err1, err2) == nil && fileName(from, id) == name
}

// label is what the wrapping is bound to, so that nobody can give one category the key of another.
func (s *Stored) label() string {
	return fmt.Sprintf("%s%d %016x %s", fileMagic, s.From, s.ID, url.QueryEscape(s.Category))
}

// encode returns the content of the key's file: a line, with the checksum of what is before it at its end.
func (e *keyEntry) encode() []byte {
	text := e.stored.label() + " " + deletedMark
	if !e.stored.Deleted {
		text = fmt.Sprintf("%s %s %s", e.stored.label(), e.stored.Wrapper, base64.StdEncoding.EncodeToString(e.wrapped))
	}
	return fmt.Appendf(nil, "%s %08x\n", text, crc32.Checksum([]byte(text), castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// decodeFile is the inverse of encode. The error matches errKeyFile.
func decodeFile(content []byte) (*keyEntry, error) {
	refuse := func(reason string) (*keyEntry, error) { return nil, fmt.Errorf("%w: %s", errKeyFile, reason) }
	if len(content) > maxFile {
		return refuse("it is too long")
	}
	rest, known := strings.CutPrefix(string(content), fileMagic)
	fields := strings.Split(strings.TrimSuffix(rest, "\n"), " ")
	if !known || len(fields) != 6 {
		return refuse(fmt.Sprintf("want %q, the run, the id, the category, the name of the key that wraps it, the key and a checksum, in one line", fileMagic))
	}
	from, err1 := strconv.ParseUint(fields[0], 10, 64)
	id, err2 := strconv.ParseUint(fields[1], 16, 64)
	category, err3 := url.QueryUnescape(fields[2])
	e := &keyEntry{stored: Stored{File: fileName(from, id), From: from, ID: id, Category: category}}
	var err4 error
	if e.stored.Deleted = fields[3]+" "+fields[4] == deletedMark; !e.stored.Deleted {
		e.stored.Wrapper = fields[3]
		e.wrapped, err4 = base64.StdEncoding.Strict().DecodeString(fields[4])
	}
	switch err := errors.Join(err1, err2, err3, err4); {
	case err != nil:
		return refuse(err.Error())
	case id == 0 || category == "" || len(category) > maxCategory:
		return refuse("a field breaks a limit")
	case string(e.encode()) != string(content):
		return refuse("the checksum does not match, or it has another form than it is written in")
	}
	return e, nil
}
