package rsyslog

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// metric is the sum of a counter of a process over its labels.
func metric(b *testing.B, server, name string) int64 {
	res, err := http.Get(server + "/metrics") //nolint:noctx // bounded by the benchmark
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.Fatal(err)
	}
	var total float64
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			b.Fatal(err)
		}
		total += v
	}
	return int64(total)
}
