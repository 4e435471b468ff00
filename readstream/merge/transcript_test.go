package merge

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// TestTranscripts runs testdata/*.txt: what a merge is told, and what it hands out. Shards are a, b, c, ...; a record is LSN@time, and has
// the bytes that the command says (default 10).
//
//	go test ./readstream/merge -run Transcripts -rewrite
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var m *Merge
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				m = New(Options{Window: number(t, d, "window", Unbounded), Limit: int(number(t, d, "limit", 1<<20))})
				return ""
			}
			return command(t, m, d)
		})
	})
}

func command(t *testing.T, m *Merge, d *datadriven.TestData) string {
	var shard record.ShardID
	if len(d.CmdArgs) > 0 {
		shard = record.ShardID(d.CmdArgs[0].Key[0])
	}
	lsn := func(name string) record.LSN { return record.LSN(number(t, d, name, 0)) } //nolint:gosec // a test's
	switch d.Cmd {
	case "add":
		m.Add(shard, lsn("from"))
	case "begin":
		m.Begin(shard)
	case "tail":
		m.Tail(shard, lsn("next"), number(t, d, "watermark", 0), d.HasArg("sealed"))
	case "update":
		m.Update(&metalog.Update{
			Shard: shard, Entries: records(t, d), NextLSN: lsn("next"), Watermark: number(t, d, "watermark", 0), Sealed: d.HasArg("sealed"),
		})
	case "floor":
		m.Floor(number(t, d, "time", 0))
	case "looked":
		m.Looked(number(t, d, "time", 0))
	case "loaded":
		m.Loaded(shard, records(t, d))
	case "trimmed":
		m.Skip(shard, lsn("to"), Trimmed)
	case "failed":
		m.Fail(shard)
	case "late":
		m.Late(shard)
	case "retry":
		m.Retry()
	case "wants":
		var out strings.Builder
		for _, w := range m.Wants(nil, 10) {
			fmt.Fprintf(&out, "read %c from LSN %d, %d bytes\n", w.Shard, w.LSN, w.MaxBytes)
		}
		return out.String()
	case "take":
		return take(m)
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	return ""
}

// take takes all items that there are, and says why there are no more.
func take(m *Merge) string {
	var out strings.Builder
	for {
		it, status := m.Next()
		if status != Ready {
			why := map[Status]string{Read: "wants reads", Look: "wants a look at tails and for shards", Idle: "waits for news"}[status]
			fmt.Fprintf(&out, "%s; %d pending, nothing comes below %d\n", why, m.Pending(), m.Low())
			return out.String()
		}
		switch it.Kind {
		case Entry:
			fmt.Fprintf(&out, "%c %d@%d\n", it.Shard, it.LSN, it.Time)
		case Gap:
			fmt.Fprintf(&out, "%c gap %d to %d\n", it.Shard, it.LSN, it.To)
		case End:
			fmt.Fprintf(&out, "%c ends at %d\n", it.Shard, it.LSN)
		}
	}
}

// number is the value of an argument.
func number(t *testing.T, d *datadriven.TestData, name string, otherwise int64) int64 {
	if !d.HasArg(name) {
		return otherwise
	}
	var v int64
	d.ScanArgs(t, name, &v)
	return v
}

// records are the arguments of the form LSN@time.
func records(t *testing.T, d *datadriven.TestData) (out []metalog.Entry) {
	for _, arg := range d.CmdArgs[1:] {
		lsn, at, ok := strings.Cut(arg.Key, "@")
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(lsn, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		time, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, metalog.Entry{LSN: record.LSN(n), Time: time, Data: make([]byte, number(t, d, "bytes", 10))})
	}
	return out
}
