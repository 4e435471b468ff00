package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/consumer"
	"scribe/producer"
	"scribe/producer/columns"
	"scribe/test/program"
)

// visit is a message of this file's tests.
type visit struct {
	ClientIP string `json:"client_ip"`
	N        int    `json:"n"`
	Way      string `json:"way"`
}

// addresses is the number of different addresses in the messages.
const addresses = 60

// visits are lines of a message from each address.
func visits(way string) []byte {
	var b bytes.Buffer
	for i := range addresses {
		line, _ := json.Marshal(visit{fmt.Sprintf("10.0.%d.%d", i/250, i%250), i, way})
		b.Write(append(line, '\n'))
	}
	return b.Bytes()
}

// shardsOf says, by the program, in which logical shards a value may be.
func shardsOf(t *testing.T, c *cell, category, value string) []uint32 {
	t.Helper()
	var described struct {
		ValueShards []uint32 `json:"value_shards"`
	}
	if err := json.Unmarshal(ok(t, nil, "category", "describe", category, "--value", value, "--server", c.read), &described); err != nil {
		t.Fatal(err)
	}
	return described.ValueShards
}

// TestPlacement: whatever way a message comes in, by the library, the command line, plain HTTP, an agent's inputs and as columns, it is in
// the shard of its key or field; so `tail --shards` and queries find it there, also after shards were added.
func TestPlacement(t *testing.T) {
	h := startHost(t, "*.log")
	c := &cell{write: h.cell.URL, read: h.cell.URL}
	schema := filepath.Join(t.TempDir(), "visits.yaml")
	if err := os.WriteFile(schema, []byte("format: json\nfields:\n  - {name: client_ip, type: string}\n  - {name: n, type: int64}\n  - {name: way, type: string}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, category := range []string{"file.visits", "visits"} {
		ok(t, nil, "category", "create", category, "--shards", "8", "--shard-by", "field:client_ip", "--schema", schema, "--server", c.read)
	}
	ok(t, nil, "category", "create", "keyed", "--shards", "8", "--shard-by", "key", "--server", c.read)

	ways := map[string]int{} // messages of each address in the category visits
	produce(t, c, "visits", visits("command"))
	produce(t, &cell{write: h.agent.URL}, "visits", visits("through the agent"))
	h.post(h.agent.URL+"/v1/lines/visits", "text/plain", string(visits("lines")))
	var published []string
	for line := range bytes.Lines(visits("http")) {
		text, _ := json.Marshal(strings.TrimSpace(string(line)))
		published = append(published, fmt.Sprintf(`{"text": %s}`, text))
	}
	for _, url := range []string{h.cell.URL, h.agent.URL} {
		post(t, url, "WriteService/Publish", `{"category": "visits", "ack": "ACK_LEVEL_COMMITTED", "messages": [`+strings.Join(published, ",")+`]}`, http.StatusOK)
	}
	post(t, h.cell.URL, "WriteService/Publish", `{"category": "visits", "shard": 3, "messages": [`+published[0]+`]}`, http.StatusBadRequest)
	p, err := producer.New(c.write)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(context.Background()) }()
	rows := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "client_ip", Type: arrow.BinaryTypes.String}, {Name: "n", Type: arrow.PrimitiveTypes.Int32}, {Name: "way", Type: arrow.BinaryTypes.String}}, nil))
	for i := range addresses {
		rows.Field(0).(*array.StringBuilder).Append(fmt.Sprintf("10.0.0.%d", i))
		rows.Field(1).(*array.Int32Builder).Append(int32(i))
		rows.Field(2).(*array.StringBuilder).Append("columns")
	}
	if err := columns.Write(t.Context(), p, "visits", 0, rows.NewRecordBatch()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.dir, "visits.log"), visits("file"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.taken("follow", addresses)
	h.drained()

	// Each shard holds what the program says that it holds, and nothing else. (tail prints columns as they came, so they are not asked for.)
	used := 0
	for shard := range uint32(8) {
		for _, category := range []string{"visits", "file.visits"} {
			lines := ok(t, nil, "tail", category, "--where", "way <> 'columns'", "--from", "earliest", "--until-end", "--shards", fmt.Sprint(shard), "--server", c.read)
			if category == "visits" && len(lines) > 0 {
				used++
			}
			for line := range bytes.Lines(lines) {
				var v visit
				if err := json.Unmarshal(line, &v); err != nil {
					t.Fatal(err)
				}
				ways[v.Way]++
				if v.N%10 == 0 && !slices.Equal(shardsOf(t, c, category, v.ClientIP), []uint32{shard}) {
					t.Errorf("%s of %s is in shard %d", line, category, shard)
				}
			}
		}
	}
	want := map[string]int{"command": addresses, "through the agent": addresses, "lines": addresses, "http": 2 * addresses, "file": addresses}
	if used != 8 || fmt.Sprint(ways) != fmt.Sprint(want) {
		t.Errorf("%d shards are used, messages by their ways: %v, want %v", used, ways, want)
	}
	// A query finds all of them in one shard.
	const query = "SELECT n, way FROM visits WHERE client_ip = '10.0.0.17' AND n >= 0"
	wantRows := func(count int, shards []uint32) {
		t.Helper()
		if got := ok(t, nil, "query", query, "-o", "csv", "--server", c.read); bytes.Count(got, []byte("\n")) != 1+count || bytes.Count(got, []byte("17,")) != count {
			t.Errorf("the query has the answer\n%s", got)
		}
		explained := string(ok(t, nil, "query", query, "--explain", "--server", c.read))
		text := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(shards)), ", "), "[]")
		if !strings.Contains(explained, "shards     "+text+" of ") {
			t.Errorf("the query does not read shards %s:\n%s", text, explained)
		}
		pointers := func(explained string) string { return regexp.MustCompile(`pointers +\d+`).FindString(explained) }
		there := string(ok(t, nil, "query", query, "--explain", "--server", c.read, "--shards", strings.ReplaceAll(text, " ", "")))
		all := string(ok(t, nil, "query", "SELECT n, way FROM visits WHERE client_ip <> '10.0.0.17'", "--explain", "--server", c.read))
		if pointers(explained) != pointers(there) || pointers(explained) == pointers(all) {
			t.Errorf("the query reads %s, its shards have %s, all have %s", pointers(explained), pointers(there), pointers(all))
		}
	}
	wantRows(6, shardsOf(t, c, "visits", "10.0.0.17"))

	// Keys, and more shards: the key's messages are in the shards of both layouts.
	produce(t, c, "keyed", visits("before"), "--key-field", "client_ip")
	ok(t, nil, "category", "update", "keyed", "--shards", "11", "--server", c.read)
	ok(t, nil, "category", "update", "visits", "--shards", "11", "--server", c.read)
	produce(t, c, "keyed", visits("after"), "--key-field", "client_ip")
	produce(t, c, "visits", visits("after"))
	moved := 0
	for i := range addresses {
		address := fmt.Sprintf("10.0.0.%d", i)
		shards := shardsOf(t, c, "keyed", address)
		if len(shards) == 2 {
			moved++
		}
		if i%10 == 0 {
			list := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(shards)), ","), "[]")
			if got := tail(t, c, "keyed", "--shards", list, "--where", fmt.Sprintf("_key = '%s'", address)); bytes.Count(got, []byte("\n")) != 2 {
				t.Errorf("shards %s hold of %s\n%s", list, address, got)
			}
		}
	}
	if moved == 0 || moved == addresses {
		t.Errorf("%d of %d keys moved", moved, addresses)
	}
	wantRows(7, shardsOf(t, c, "visits", "10.0.0.17"))
	for _, wrong := range [][]string{
		{"category", "create", "x", "--shard-by", "field"},
		{"category", "create", "x", "--shard-by", "field:a..b"},
		{"category", "create", "x", "--shard-by", "key:a"},
		{"category", "create", "x", "--shard-by", "luck"},
		{"category", "describe", "visits", "--value", "1.0"},
	} {
		if r := cli(t, nil, append(wrong, "--server", c.read)...); r.Code != 2 {
			t.Errorf("%q: exit code %d\n%s", wrong, r.Code, r.Stderr)
		}
	}
}

// TestTailKey: tail --key prints the messages of a key, or of a value of a field, and reads only their shards: also those that were added,
// before it began and while it follows. tail --where reads no more.
func TestTailKey(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	defer up.Stop()
	c := &cell{write: up.URL, read: up.URL}
	schema := filepath.Join(t.TempDir(), "visits.yaml")
	if err := os.WriteFile(schema, []byte("format: json\nfields:\n  - {name: client_ip, type: string}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for category, by := range map[string]string{"keyed": "key", "visits": "field:client_ip", "loose": "sticky", "chosen": "explicit"} {
		ok(t, nil, "category", "create", category, "--shards", "8", "--shard-by", by, "--schema", schema, "--server", up.URL)
	}
	write := func(way string) {
		produce(t, c, "keyed", visits(way), "--key-field", "client_ip")
		produce(t, c, "visits", visits(way))
	}
	sent := func() float64 {
		m, err := up.Scrape(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return m.Sum("scribe_readstream_pointers_total")
	}
	write("before")
	const grown = 29
	ok(t, nil, "category", "update", "visits", "--shards", fmt.Sprint(grown), "--server", up.URL)
	if both := shardsOf(t, c, "visits", "10.0.0.17"); len(both) != 2 {
		t.Fatalf("the address is in shards %v", both)
	}
	follower, stdout := launch(t, nil, "tail", "keyed", "--key", "10.0.0.17", "--key", "10.0.0.18", "--from", "earliest", "--server", up.URL)
	lines := bufio.NewReader(stdout)
	next := func(way string) {
		t.Helper()
		var got []string
		for range 2 {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, line)
		}
		slices.Sort(got)
		if want := fmt.Sprintf(`{"client_ip":"10.0.0.17","n":17,"way":%q}`+"\n"+`{"client_ip":"10.0.0.18","n":18,"way":%q}`+"\n", way, way); strings.Join(got, "") != want {
			t.Fatalf("the tail that follows prints %q", got)
		}
	}
	next("before")
	ok(t, nil, "category", "update", "keyed", "--shards", fmt.Sprint(grown), "--server", up.URL)
	write("after")
	next("after")
	follower.Stop()

	for _, category := range []string{"keyed", "visits"} {
		column := map[string]string{"keyed": "_key", "visits": "client_ip"}[category]
		before := sent()
		all := tail(t, c, category)
		whole := sent() - before
		for _, args := range [][]string{{"--key", "10.0.0.17"}, {"--where", column + " = '10.0.0.17'"}} {
			before = sent()
			got := tail(t, c, category, args...)
			few := sent() - before
			if bytes.Count(got, []byte("\n")) != 2 || bytes.Count(got, []byte(`"10.0.0.17"`)) != 2 {
				t.Errorf("tail %s %q prints\n%s", category, args, got)
			}
			if few*3 > whole {
				t.Errorf("tail %s %q reads %v pointers, the category has %v with %d messages", category, args, few, whole, bytes.Count(all, []byte("\n")))
			}
		}
	}
	// A checkpoint, and a second run.
	file := filepath.Join(t.TempDir(), "checkpoint")
	if got := tail(t, c, "keyed", "--key", "10.0.0.17", "--checkpoint", file); bytes.Count(got, []byte("\n")) != 2 {
		t.Errorf("printed\n%s", got)
	}
	write("later")
	if got, want := string(tail(t, c, "keyed", "--key", "10.0.0.17", "--checkpoint", file)), `{"client_ip":"10.0.0.17","n":17,"way":"later"}`+"\n"; got != want {
		t.Errorf("the second run prints %q", got)
	}
	// The file of a predicate is a position in all shards: another one goes on there.
	file = filepath.Join(t.TempDir(), "checkpoint")
	if got := tail(t, c, "visits", "--where", "client_ip = '10.0.0.17'", "--checkpoint", file); bytes.Count(got, []byte("\n")) != 3 {
		t.Errorf("printed\n%s", got)
	}
	for i := range addresses {
		if i%7 == 0 {
			if got := tail(t, c, "visits", "--where", fmt.Sprintf("client_ip = '10.0.0.%d'", i), "--checkpoint", file); len(got) > 0 {
				t.Errorf("behind the end is\n%s", got)
			}
		}
	}
	for _, wrong := range []struct {
		text string
		args []string
	}{
		{"neither by key nor by field", []string{"loose", "--key", "a"}},
		{"neither by key nor by field", []string{"chosen", "--key", "a"}},
		{"want a text or an integer", []string{"visits", "--key", "1.0"}},
		{"--shards", []string{"keyed", "--key", "a", "--shards", "1"}},
		{"--group", []string{"keyed", "--key", "a", "--group", "g"}},
	} {
		r := cli(t, nil, append([]string{"tail", "--until-end", "--server", up.URL}, wrong.args...)...)
		if r.Code != 2 || !strings.Contains(string(r.Stderr), "--key") || !strings.Contains(string(r.Stderr), wrong.text) {
			t.Errorf("tail %q: exit code %d\n%s", wrong.args, r.Code, r.Stderr)
		}
	}
}

// TestOrderPerKey: while shards are added and the cell is killed and started again, a reader with a strict window gets the messages of each
// key in the order in which a producer wrote them. Messages may come twice, since the category is at_least_once: the first counts.
func TestOrderPerKey(t *testing.T) {
	const keys = 20
	data := filepath.Join(t.TempDir(), "data")
	up := serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
	address := program.Address(t, up.URL)
	ok(t, nil, "category", "create", "log", "--shards", "2", "--shard-by", "key", "--server", up.URL)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var (
		writing sync.WaitGroup
		written [2]int // messages of each key, by each producer
	)
	for w := range written {
		writing.Go(func() {
			p, err := producer.New(up.URL, producer.WithBackoff(10*time.Millisecond, 100*time.Millisecond), producer.WithCategoryRefresh(200*time.Millisecond))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() {
				if err := p.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			for pace := time.NewTicker(5 * time.Millisecond); ctx.Err() == nil; <-pace.C {
				for k := range keys {
					p.WriteAsyncContext(ctx, "log", &producer.Message{Key: fmt.Appendf(nil, "key %d of %d", k, w), Payload: fmt.Append(nil, written[w])})
				}
				written[w]++
			}
		})
	}
	for round, shards := range []int{3, 8, 16} {
		<-time.After(time.Second)
		ok(t, nil, "category", "update", "log", "--shards", fmt.Sprint(shards), "--server", up.URL)
		if round == 1 {
			up.Kill()
			up = serve(t, nil, "up", "--data", data, "--listen", address)
		}
	}
	<-time.After(time.Second)
	stop()
	writing.Wait()

	co, err := consumer.New(up.URL, "log", consumer.WithStart(consumer.Earliest()), consumer.WithWindow(0), consumer.WithUntilEnd())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = co.Close() }()
	next, last := map[string]int{}, map[string]uint16{}
	moved := 0
	for r, err := range co.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if _, err := fmt.Sscan(string(r.Payload), &n); err != nil {
			t.Fatal(err)
		}
		key, shard := string(r.Key), r.Shard.Logical()
		if n > next[key] {
			t.Fatalf("message %d of %s, in shard %d, came after %d of its messages", n, key, shard, next[key])
		}
		if before, known := last[key]; known && before != shard {
			moved++
		}
		next[key], last[key] = max(next[key], n+1), shard
	}
	for w, n := range written {
		for k := range keys {
			if key := fmt.Sprintf("key %d of %d", k, w); next[key] < n-1 { // a message may have been refused when it stopped
				t.Errorf("%d of %d messages of %s", next[key], n, key)
			}
		}
	}
	if moved == 0 {
		t.Error("no key moved to another shard")
	}
}
