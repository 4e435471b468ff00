package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"scribe/columnar/schema"
	scribev1 "scribe/proto/scribe/v1"
)

// readSchema reads a schema from a file; - is stdin. A mistake in it is one of the caller's. Files that it refers to are beside it.
func readSchema(name string, stdin io.Reader) (*schema.Schema, error) {
	var text []byte
	var err error
	if name == "-" && stdin != nil {
		text, err = readLimited(stdin)
	} else {
		text, err = readFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s, err := schema.ParseFile(text, func(other string) ([]byte, error) {
		if !filepath.IsAbs(other) {
			other = filepath.Join(filepath.Dir(name), other)
		}
		return readFile(other)
	})
	if err != nil {
		return nil, usageError(fmt.Errorf("%s: %w", name, indentLines(err)))
	}
	return s, nil
}

func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		if pathErr := new(os.PathError); errors.As(err, &pathErr) {
			err = pathErr.Err // the caller names the file
		}
		return nil, err
	}
	text, err := readLimited(file)
	return text, errors.Join(err, file.Close())
}

func readLimited(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, schema.MaxText+1))
	if err == nil && len(text) > schema.MaxText {
		err = usageError(fmt.Errorf("the schema is too large: want at most %d bytes", schema.MaxText))
	}
	return text, err
}

// indentLines shows an error of several lines below what it is about.
func indentLines(err error) error {
	if text := err.Error(); bytes.ContainsRune([]byte(text), '\n') {
		return &callError{text: "\n  " + string(bytes.ReplaceAll([]byte(text), []byte("\n"), []byte("\n  "))), err: err}
	}
	return err
}

// schemaSummary is a category's schema in a few words.
func schemaSummary(c *scribev1.Category) string {
	h, err := schema.ParseHistory(c.GetSchema())
	switch {
	case err != nil:
		return "can't be read: " + err.Error()
	case h.Infer():
		return "infer"
	case h.Latest() == nil:
		return ""
	}
	s := h.Latest()
	return fmt.Sprintf("version %d: %s, %s", s.Version, s.Format, countText(len(s.Fields), "field"))
}

// countText is a number of things.
func countText[N int | int64](n N, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
