package schema

import (
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTimeFormats(t *testing.T) {
	at := func(text string) int64 {
		v, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return v.UnixMicro()
	}
	for _, c := range []struct {
		format TimeFormat
		text   string
		want   string // empty: is not read
	}{
		{RFC3339, "2024-02-29T12:00:00Z", "2024-02-29T12:00:00Z"},
		{RFC3339, "2024-02-29 12:00:00.1234567z", "2024-02-29T12:00:00.123456Z"},
		{RFC3339, "2024-02-29t12:00:00+02:00", "2024-02-29T10:00:00Z"},
		{RFC3339, "1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999Z"},
		{RFC3339, "2024-02-29T12:00:00", ""},
		{RFC3339, "2024-02-30T12:00:00Z", ""},
		{RFC3339, "2024-02-29_12:00:00Z", ""},
		{RFC3339, "2024-02-29T12:00:00,5Z", ""},
		{RFC3339, "2024-02-29", ""},
		{RFC3339, "", ""},
		{DateOnly, "2024-02-29", "2024-02-29T00:00:00Z"},
		{DateOnly, "2024-2-9", ""},
		{"02/Jan/2006:15:04:05 -0700", "17/May/2015:10:05:03 +0100", "2015-05-17T09:05:03Z"},
		{"2006-01-02 15:04:05", "2015-05-17 10:05:03.25", "2015-05-17T10:05:03.25Z"},
		{time.RFC1123, "Sun, 17 May 2015 10:05:03 GMT", "2015-05-17T10:05:03Z"},
		{time.RFC1123, "Sun, 17 May 2015 10:05:03 PST", ""},
		{UnixSeconds, "1431857103", "2015-05-17T10:05:03Z"},
		{UnixSeconds, "1431857103.1234569", "2015-05-17T10:05:03.123456Z"},
		{UnixSeconds, "-0.5", "1969-12-31T23:59:59.5Z"},
		{UnixSeconds, "-0.00000001", "1969-12-31T23:59:59.999999Z"},
		{UnixMillis, "1431857103001", "2015-05-17T10:05:03.001Z"},
		{UnixMillis, "1.5", "1970-01-01T00:00:00.0015Z"},
		{UnixMicros, "1.9", "1970-01-01T00:00:00.000001Z"},
		{UnixNanos, "1999.9", "1970-01-01T00:00:00.000001Z"},
		{UnixNanos, "-1", "1969-12-31T23:59:59.999999Z"},
		{UnixSeconds, "9300000000000", ""},
		{UnixSeconds, "99999999999999999999", ""},
		{UnixSeconds, "1e9", ""},
		{UnixSeconds, "+1", ""},
		{UnixSeconds, "1.", ""},
		{UnixSeconds, ".5", ""},
		{UnixSeconds, "", ""},
	} {
		got, ok := c.format.Parse(c.text)
		if ok != (c.want != "") || ok && got != at(c.want) {
			t.Errorf("%s reads %q as %v (%v), want %s", c.format, c.text, time.UnixMicro(got).UTC().Format(time.RFC3339Nano), ok, c.want)
		}
	}
}

// TestUnixFormats: all four read an instant as the same one.
func TestUnixFormats(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.Int64().Draw(t, "ns")
		want := time.Unix(0, ns).UnixMicro()
		sign, digits := "", strconv.FormatInt(ns, 10)
		if ns < 0 {
			sign, digits = "-", digits[1:]
		}
		for len(digits) < 10 {
			digits = "0" + digits
		}
		for format, places := range map[TimeFormat]int{UnixSeconds: 9, UnixMillis: 6, UnixMicros: 3, UnixNanos: 0} {
			text := sign + digits
			if cut := len(digits) - places; places > 0 {
				text = sign + digits[:cut] + "." + digits[cut:]
			}
			if got, ok := format.Parse(text); !ok || got != want {
				t.Fatalf("%s reads %s as %d (%v), want %d", format, text, got, ok, want)
			}
		}
	})
}
