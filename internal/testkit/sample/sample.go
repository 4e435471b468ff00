// Package sample holds real input for benchmarks and tests, compressed inside the binary.
//
//   - AccessLog: a web server's access log in combined format, 10,000 lines, 2.4 MB.
//   - AccessJSON: the same with a flat JSON object per line, 9,999 lines, 3.2 MB; some fields are null.
//   - NginxStatus: status documents of an nginx server, deeply nested JSON, 500 lines of about 5.5 KB.
//
// All are from elastic/examples, "Common Data Formats", Apache-2.0; AccessJSON is derived from AccessLog.
package sample

import (
	_ "embed" // the samples
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

//go:embed apache_access.log.zst
var accessLog []byte

//go:embed access.jsonl.zst
var accessJSON []byte

//go:embed nginx_status.jsonl.zst
var nginxStatus []byte

// The samples, decompressed once. Callers must not change them.
var (
	AccessLog   = sync.OnceValue(func() []byte { return decompressSample("apache_access.log", accessLog) })
	AccessJSON  = sync.OnceValue(func() []byte { return decompressSample("access.jsonl", accessJSON) })
	NginxStatus = sync.OnceValue(func() []byte { return decompressSample("nginx_status.jsonl", nginxStatus) })
)

// decompressSample panics if the binary was built from damaged files, since callers can't handle that.
func decompressSample(name string, b []byte) []byte {
	dec, err := zstd.NewReader(nil)
	if err != nil {
		panic(fmt.Sprintf("sample %s: %v", name, err))
	}
	defer dec.Close()
	out, err := dec.DecodeAll(b, nil)
	if err != nil {
		panic(fmt.Sprintf("sample %s: %v", name, err))
	}
	return out
}
