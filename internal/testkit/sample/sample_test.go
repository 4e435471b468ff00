package sample

import (
	"bytes"
	"testing"
)

func TestSamplesAreWhole(t *testing.T) {
	for _, c := range []struct {
		name         string
		data         []byte
		lines, bytes int
	}{
		{"AccessLog", AccessLog(), 10_000, 2_370_789},
		{"AccessJSON", AccessJSON(), 9_999, 3_206_647},
		{"NginxStatus", NginxStatus(), 500, 2_784_760},
	} {
		if n := bytes.Count(c.data, []byte{'\n'}); n != c.lines || len(c.data) != c.bytes {
			t.Errorf("%s has %d lines and %d bytes, want %d and %d", c.name, n, len(c.data), c.lines, c.bytes)
		}
	}
}
