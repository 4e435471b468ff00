package record_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
)

func TestValidateCategory(t *testing.T) {
	for _, name := range []string{"a", "Z", "0", "web.access", "a-b_c.D9", "a..", "_audit", strings.Repeat("x", record.MaxCategoryName)} {
		if err := record.ValidateCategory(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", ".a", "-a", "a/b", `a\b`, "a b", "a\x00", "ä", "aä", "a\n", strings.Repeat("x", record.MaxCategoryName+1)} {
		if err := record.ValidateCategory(name); !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestValidateAttributeName(t *testing.T) {
	for _, name := range []string{"a", "größe", "a b", strings.Repeat("x", 1000)} {
		if err := record.ValidateAttributeName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "\xff", "a\xc3"} {
		if err := record.ValidateAttributeName(name); !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestShardID(t *testing.T) {
	if got := record.MakeShardID(7, 0, 1).String(); got != "7/0/1" {
		t.Errorf("String %q", got)
	}
	if got := record.MakeShardID(1, 2, 3); got != 1<<32|2<<16|3 {
		t.Errorf("%#x", uint64(got))
	}
	rapid.Check(t, func(t *rapid.T) {
		id := record.ShardID(rapid.Uint64().Draw(t, "id"))
		if back := record.MakeShardID(id.Category(), id.Logical(), id.Writer()); back != id {
			t.Fatalf("%v became %v", id, back)
		}
		if back, err := record.ParseShardID(id.String()); err != nil || back != id {
			t.Fatalf("%v was read as %v, %v", id, back, err)
		}
	})
	for _, text := range []string{
		"", "7", "7/0", "7/0/1/2", "/0/1", "7//1", "7/0/", "a/0/1", "-1/0/1", "+1/0/1", "07/0/1", "7/00/1", "7/0/1 ",
		"4294967296/0/0", "0/65536/0", "0/0/65536", "0x7/0/1", "1_0/0/0",
	} {
		if id, err := record.ParseShardID(text); !errors.Is(err, record.ErrInvalid) || id != 0 {
			t.Errorf("%q: %v, %v", text, id, err)
		}
	}
}
