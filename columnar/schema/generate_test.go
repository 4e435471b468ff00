package schema

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"
)

// name draws a name, often one that needs quotes somewhere.
func drawName(t *rapid.T, taken map[string]bool, top bool) string {
	name := rapid.OneOf(
		rapid.StringMatching(`[a-z][a-z0-9_]{0,8}`),
		rapid.SampledFrom([]string{"true", "null", "1xx", "a.b", `say "hi"`, "grüße", "user agent", "#", "- x", "2024-01-01", "~", "not", "it's", "a: b", "0x1"}),
	).Filter(func(s string) bool { return !taken[s] && (!top || s[0] != '_') }).Draw(t, "name")
	taken[name] = true
	return name
}

func drawType(t *rapid.T, depth int) Type {
	kinds := []Kind{Bool, Int32, Int64, Uint64, Float64, Decimal, String, Binary, Date, Timestamp}
	if depth < 3 {
		kinds = append(kinds, List, Map, Struct)
	}
	out := Type{Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	switch out.Kind {
	case Decimal:
		out.Precision = rapid.Int32Range(1, 38).Draw(t, "precision")
		out.Scale = rapid.Int32Range(0, out.Precision).Draw(t, "scale")
	case String:
		out.Dictionary = rapid.Bool().Draw(t, "dictionary")
	case Date, Timestamp:
		all := []TimeFormat{RFC3339, UnixSeconds, UnixMillis, UnixNanos, DateOnly, "2006-01-02 15:04:05", "Jan 2, 2006 at 3:04pm (MST)", "2006 'o' 01''02"}
		out.Formats = slices.Clone(rapid.Permutation(all).Draw(t, "formats")[:rapid.IntRange(0, 3).Draw(t, "n")])
		if len(out.Formats) == 0 {
			out.Formats = nil
		}
	case List, Map:
		e := drawType(t, depth+1)
		out.Elem = &e
	case Struct:
		out.Fields = drawFields(t, depth+1)
	default:
	}
	return out
}

func drawFields(t *rapid.T, depth int) []Field {
	names, paths := map[string]bool{}, 0
	fields := make([]Field, rapid.IntRange(1, 4).Draw(t, "fields"))
	for i := range fields {
		f := &fields[i]
		f.Name = drawName(t, names, depth == 0)
		f.Nullable = rapid.Bool().Draw(t, "nullable")
		f.Type = drawType(t, depth)
		path := func() []string {
			paths++ // in no other's way
			return []string{fmt.Sprintf("/p%d", paths), rapid.SampledFrom([]string{"x", "a.b", `"`, "", "ü"}).Draw(t, "step")}
		}
		if rapid.IntRange(0, 3).Draw(t, "path") == 0 {
			f.Path = path()
		}
		for range max(0, rapid.IntRange(-3, 2).Draw(t, "aliases")) {
			f.Aliases = append(f.Aliases, path())
		}
		f.Doc = rapid.SampledFrom([]string{"", "", "what it is", "two\nlines: x"}).Draw(t, "doc")
		if rapid.IntRange(0, 3).Draw(t, "default") == 0 {
			f.Default = map[Kind]string{
				Bool: "true", Int32: "-7", Int64: "9223372036854775807", Uint64: "18446744073709551615", Float64: "1e3", Decimal: "0",
				String: `"a <b> \"c\""`, Binary: `"x"`, List: "[]", Map: `{"a":null}`, Struct: "{}",
			}[f.Type.Kind]
		}
	}
	return fields
}

func drawSchema(t *rapid.T) *Schema {
	s := &Schema{
		Version: rapid.Uint32Range(1, 9).Draw(t, "version"),
		Format:  rapid.SampledFrom([]Format{JSON, NDJSON, Arrow}).Draw(t, "format"),
		OnError: rapid.SampledFrom([]OnError{OnErrorNull, OnErrorReject}).Draw(t, "on_error"),
		Fields:  drawFields(t, 0),
	}
	return s
}
