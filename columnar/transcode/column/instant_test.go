package column

import (
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"scribe/columnar/schema"
)

// TestInstantsAreThoseOfTheSchema holds the fast ways of reading times against the formats' own.
func TestInstantsAreThoseOfTheSchema(t *testing.T) {
	formats := []schema.TimeFormat{schema.RFC3339, schema.DateOnly, schema.UnixSeconds, schema.UnixMillis, schema.UnixMicros, schema.UnixNanos}
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom(formats).Draw(t, "format")
		typ := schema.Type{Kind: schema.Timestamp, Formats: []schema.TimeFormat{f}}
		times := timeFormats(&typ)
		text := rapid.OneOf(
			rapid.StringMatching(`[0-9]{4}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9]:[0-6][0-9]([.,][0-9]{0,12})?(Z|z|[+-][0-2][0-9]:[0-6][0-9])?`),
			rapid.StringMatching(`(0000|0400|1600|1900|2000|2023|2024|9999)-(02-(28|29|30)|(01|04|12)-(00|01|30|31|32)|13-01)(T23:59:(59|60)Z)?`),
			rapid.StringMatching(`-?[0-9]{1,20}(\.[0-9]{0,8})?`),
			rapid.String(),
		).Draw(t, "text")
		want, wantOK := f.Parse(text)
		if got, ok := ParseInstant(times, []byte(text), false); ok != wantOK || ok && got != want {
			t.Fatalf("%q as %s is %d, %v, want %d, %v", text, f, got, ok, want, wantOK)
		}
		n := rapid.Int64Range(-999_999_999_999_999_999, 999_999_999_999_999_999).Draw(t, "number")
		want, wantOK = f.Parse(strconv.FormatInt(n, 10))
		if _, unix := f.Unix(); !unix {
			wantOK = false
		}
		if got, ok := InstantOfInteger(times, n); ok != wantOK || ok && got != want {
			t.Fatalf("%d as %s is %d, %v, want %d, %v", n, f, got, ok, want, wantOK)
		}
	})
}
