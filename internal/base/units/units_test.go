package units

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"72h":   72 * time.Hour,
		"3d":    72 * time.Hour,
		"1w2d":  9 * 24 * time.Hour,
		"1d12h": 36 * time.Hour,
		"250ms": 250 * time.Millisecond,
		"0":     0,
		"1.5d":  36 * time.Hour,
	} {
		got, err := ParseDuration(in)
		if err != nil || got.Std() != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "d", "-1h", "-1d", "3", "1e99d", "1d-25h", "9999999999h", "1d2", "NaNd"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func TestDurationRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Duration(rapid.Int64Range(0, int64(4000*24*time.Hour)).Draw(t, "d"))
		if got, err := ParseDuration(d.String()); err != nil || got != d {
			t.Fatalf("%q reads as %v, %v, want %d", d, got, err, d)
		}
	})
	if got := Duration(72 * time.Hour).String(); got != "3d" {
		t.Errorf("72 h is written %q, want 3d", got)
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]Bytes{
		"0": 0, "1048576": 1 << 20, "64MiB": 64 << 20, "64 mib": 64 << 20, "10MB": 10_000_000, "512k": 512 << 10, "1.5G": 3 << 29, "7b": 7,
	} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "-1", "x", "1XB", "99999999999T", "MiB", "NaN"} {
		if got, err := ParseBytes(in); err == nil {
			t.Errorf("ParseBytes(%q) = %d, want an error", in, got)
		}
	}
}

func TestBytesString(t *testing.T) {
	for b, want := range map[Bytes]string{0: "0", 1: "1B", 1000: "1000B", 1024: "1KiB", 3 << 29: "1536MiB", 1_000_000: "1MB", 1_024_000: "1000KiB", 10_000_000: "10MB", 1_500_000: "1500000B", 7e12: "7TB"} {
		if got := b.String(); got != want {
			t.Errorf("%d is %q, want %q", int64(b), got, want)
		}
	}
}

func TestBytesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Min(0).Draw(t, "b"))
		if got, err := ParseBytes(b.String()); err != nil || got != b {
			t.Fatalf("%q reads as %d, %v, want %d", b, got, err, b)
		}
	})
}

func TestAbout(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0B", 1: "1B", 1023: "1023B", 1024: "1.0KiB", 1536: "1.5KiB", 30_000_000: "28.6MiB", 1<<20 - 1: "1.0MiB", 1<<20 - 100: "1023.9KiB",
		1 << 30: "1.0GiB", 1 << 40: "1.0TiB", 1 << 50: "1.0PiB", 1 << 62: "4.0EiB", 1 << 75: "32768.0EiB", 0.4: "0B",
	} {
		if got := About(n); got != want {
			t.Errorf("%v bytes are %s, want %s", n, got, want)
		}
	}
	if got := About(uint64(1<<64 - 1)); got != "16.0EiB" {
		t.Errorf("the most is %s", got)
	}
}

func TestParseTime(t *testing.T) {
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"2026-11-21T08:00:00.5+01:00": now.Add(-2*time.Hour + 500*time.Millisecond),
		"15m":                         now.Add(-15 * time.Minute),
		"3d":                          now.AddDate(0, 0, -3),
		"2026-11-20":                  time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC),
		"2026-11-20T08:30":            time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC),
		"2026-11-20 08:30:01.25":      time.Date(2026, 11, 20, 8, 30, 1, 250e6, time.UTC),
		"today":                       time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC),
		"yesterday":                   time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC),
		"now":                         now,
	} {
		if got, err := ParseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	// The day is that of UTC, wherever the clock of the caller is.
	east := now.Add(5 * time.Hour).In(time.FixedZone("", 14*3600))
	if got, err := ParseTime("today", east); err != nil || got.Format(time.DateOnly) != "2026-11-21" {
		t.Errorf("today is %v, %v", got, err)
	}
	for _, text := range []string{"", "tomorrow", "-3d", "2026-11", "2026-13-01", "21.11.2026"} {
		if got, err := ParseTime(text, now); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
