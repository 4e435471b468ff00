package record_test

import (
	"errors"
	"strings"
	"testing"

	"scribe/internal/format/record"
)

// TestErrors holds what each typed error matches, and that it says where, or
// how much.
func TestErrors(t *testing.T) {
	sentinels := []error{
		record.ErrCorrupt, record.ErrVersion, record.ErrTruncated, record.ErrTooLarge, record.ErrInvalid,
		record.ErrFrameFull, record.ErrEmptyFrame, record.ErrNoFrame, record.ErrEncoding,
	}
	for _, tc := range []struct {
		err  error
		is   error
		says string
	}{
		{&record.CorruptError{What: "flags", Offset: 6}, record.ErrCorrupt, "flags at byte 6"},
		{&record.CorruptError{What: "flags", Offset: 6, Reason: "why"}, record.ErrCorrupt, "flags at byte 6: why"},
		{&record.VersionError{Version: 9, Supported: 1, Offset: 70}, record.ErrVersion, "version 9 at byte 70"},
		{&record.TruncatedError{What: "body", Need: 80, Have: 70, Offset: 5}, record.ErrTruncated, "at byte 5: body needs 80 bytes, have 70"},
		{&record.MessageTooLargeError{Size: 11, Limit: 10}, record.ErrTooLarge, "11 bytes is over the limit of 10"},
		{&record.LimitError{What: "key bytes", Value: 3, Limit: 2}, record.ErrTooLarge, "3 key bytes, the limit is 2"},
		{&record.InvalidError{What: "category name", Value: "", Reason: "why"}, record.ErrInvalid, `category name "": why`},
	} {
		if !strings.Contains(tc.err.Error(), tc.says) {
			t.Errorf("%q does not say %q", tc.err, tc.says)
		}
		for _, s := range sentinels {
			if got, want := errors.Is(tc.err, s), errors.Is(tc.is, s); got != want {
				t.Errorf("%T matches %v: %t, want %t", tc.err, s, got, want)
			}
		}
	}
	// What comes from outside does not make an error long.
	if err := record.ValidateCategory(strings.Repeat("/", 1<<20)); len(err.Error()) > 200 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

// TestDamagedAttributes reads sections that no Decoder hands out.
func TestDamagedAttributes(t *testing.T) {
	for _, tc := range []struct {
		name    string
		section record.Attributes
		want    string // names that All yields
	}{
		{"nil", nil, ""},
		{"count is cut", record.Attributes{0x80}, ""},
		{"count cannot fit", record.Attributes{9, 1, 'a', 0}, ""},
		{"name overruns", record.Attributes{2, 1, 'a', 0, 9, 'b', 'c'}, "a"},
		{"value overruns", record.Attributes{2, 1, 'a', 0, 1, 'b', 1}, "a"},
	} {
		var names string
		for name := range tc.section.All() {
			names += string(name)
		}
		if names != tc.want {
			t.Errorf("%s: names %q, want %q", tc.name, names, tc.want)
		}
		if _, ok := tc.section.Get("b"); ok {
			t.Errorf("%s: Get finds what is not there", tc.name)
		}
		for range tc.section.All() {
			break // must not go on
		}
	}
}
