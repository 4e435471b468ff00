package test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scribe/consumer"
	"scribe/internal/format/pointer"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/program"
)

// paymentRow is a row of payments in some format.
type paymentRow struct {
	region, card string
	amount       int64
}

var paymentRows = []paymentRow{{"eu", "card-eu-1", 11}, {"us-1", "card-us-1", 90001}, {"us-2", "card-us-2", 90002}, {"eu", "card-eu-2", 12}, {"eu", "", 13}}

func (r paymentRow) json() string {
	if r.card == "" {
		return fmt.Sprintf(`{"region":%q,"amount":%d,"id":"of-%s"}`, r.region, r.amount, r.region)
	}
	return fmt.Sprintf(`{"region":%q,"card":%q,"amount":%d,"id":"of-%s"}`, r.region, r.card, r.amount, r.region)
}

func (r paymentRow) csv() string { return fmt.Sprintf("%s,%s,%d", r.region, r.card, r.amount) }

func (r paymentRow) avro() string {
	b := append(binary.AppendVarint(nil, int64(len(r.region))), r.region...)
	b = append(binary.AppendVarint(b, int64(len(r.card))), r.card...)
	return string(binary.AppendVarint(b, r.amount))
}

// paymentFormat is a format with the messages that are stored, and what readers of eu get: without cards, and with all columns.
type paymentFormat struct {
	schema               string
	stored, masked, rows []string
	// cards counts those of eu that are not null.
	cards int
}

func paymentFormats() map[string]paymentFormat {
	const columns = "fields:\n  - {name: region, type: dictionary}\n  - {name: card, type: string}\n  - {name: amount, type: int64}\n"
	one := func(i int, format func(paymentRow) string) string { return format(paymentRows[i]) }
	lines := func(format func(paymentRow) string) []string {
		return []string{one(0, format) + "\n" + one(1, format) + "\n", one(2, format) + "\n", one(3, format) + "\n" + one(4, format)}
	}
	single := func(format func(paymentRow) string) (all []string) {
		for i := range paymentRows {
			all = append(all, one(i, format))
		}
		return all
	}
	const a, b, c = `{"region":"eu","amount":11}`, `{"region":"eu","amount":12}`, `{"region":"eu","amount":13}`
	avro := single(paymentRow.avro)
	return map[string]paymentFormat{
		"json": {"format: json\n" + columns, single(paymentRow.json), []string{a, b, c}, []string{one(0, paymentRow.json), one(3, paymentRow.json), one(4, paymentRow.json)}, 2},
		"ndjson": {
			"format: ndjson\n" + columns, lines(paymentRow.json),
			[]string{a, b + "\n" + c},
			[]string{one(0, paymentRow.json), one(3, paymentRow.json) + "\n" + one(4, paymentRow.json)},
			2,
		},
		"csv": {
			"format: csv\n" + columns, lines(paymentRow.csv),
			[]string{a, b + "\n" + c},
			[]string{`{"region":"eu","card":"card-eu-1","amount":11}`, `{"region":"eu","card":"card-eu-2","amount":12}` + "\n" + c},
			2,
		},
		"avro": {
			`format: avro` + "\n" + columns + `avro: {type: record, name: P, fields: [{name: region, type: string}, {name: card, type: string}, {name: amount, type: long}]}` + "\n",
			avro,
			[]string{a, b, c},
			[]string{avro[0], avro[3], avro[4]},
			3,
		},
	}
}

// recordsOf reads some messages of a category with a token.
func (c *closedCell) recordsOf(t *testing.T, token, category string, n int, opts ...consumer.Option) (list []consumer.Record) {
	t.Helper()
	r, err := consumer.New(c.URL, category, append([]consumer.Option{consumer.WithToken(token), consumer.WithStart(consumer.Earliest())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for m, err := range r.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		m.Payload, m.Key = bytes.Clone(m.Payload), bytes.Clone(m.Key)
		if list = append(list, m); len(list) == n {
			break
		}
	}
	return list
}

func payloadsOf(list []consumer.Record) (payloads []string) {
	for i := range list {
		payloads = append(payloads, string(list[i].Payload))
	}
	return payloads
}

// startFormats starts a closed cell that can encrypt.
func startFormats(t *testing.T) *closedCell {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, program.OK(t, nil, "key", "new", "first"), 0o600); err != nil {
		t.Fatal(err)
	}
	return startClosed(t, "--encryption-key-file", keys)
}

// createPayments creates a category and writes its messages, each to be read on its own.
func (c *closedCell) createPayments(t *testing.T, name string, f *paymentFormat, flags ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name+".yaml")
	if err := os.WriteFile(file, []byte(f.schema), 0o600); err != nil {
		t.Fatal(err)
	}
	program.OK(t, nil, append([]string{"category", "create", name, "--schema", file, "--shards", "1"}, flags...)...)
	p, err := producer.New(c.URL, producer.WithToken(c.admin), producer.WithLinger(0), producer.WithAck(producer.AckCommitted))
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range f.stored {
		if err := p.Write(t.Context(), name, producer.Message{Payload: []byte(m), Key: []byte("key-us-" + fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// TestRowsOfFormats: a limited reader gets its rows and columns of every format, of encrypted and of sequenced categories, by messages, queries, groups and over HTTP, also after
// others have read all of it.
func TestRowsOfFormats(t *testing.T) {
	c := startFormats(t)
	secrets := [][]string{usRows, euCards, {"key-us", "90001", "of-us"}}
	for format, f := range paymentFormats() {
		for kind, flags := range map[string][]string{"plain": nil, "encrypted": {"--encrypted"}, "sequenced": {"--repeatable", "sequenced"}} {
			name := format + "-" + kind
			t.Run(name, func(t *testing.T) {
				c.createPayments(t, name, &f, flags...)
				eu := c.issue("--can", "read,query:"+name+" where region = 'eu' mask card", "--can", "group:"+name)
				whole := c.issue("--can", "read,query:"+name+" where region = 'eu'")
				if got := payloadsOf(c.recordsOf(t, c.admin, name, len(f.stored))); !slices.Equal(got, f.stored) {
					t.Fatalf("who sees all gets %q", got)
				}
				for range 2 { // what is learned of the payloads, and kept of them, must not change what others get
					got := string(program.OK(t, nil, "query", "SELECT count(*) AS n, max(amount) AS m FROM \""+name+"\" WHERE card like 'card-us%'", "-o", "jsonl"))
					if got != "{\"n\":2,\"m\":90002}\n" {
						t.Fatalf("who sees all gets %s", got)
					}
				}
				for token, want := range map[string][]string{eu: f.masked, whole: f.rows} {
					list := c.recordsOf(t, token, name, len(want))
					if got := payloadsOf(list); !slices.Equal(got, want) {
						t.Errorf("%q, want %q", got, want)
					}
					for i := range list {
						if token == eu && (len(list[i].Key) > 0 || strings.Contains(string(list[i].Payload), "card")) {
							t.Errorf("a key %q, a payload %q", list[i].Key, list[i].Payload)
						}
						if i > 0 && kind == "sequenced" && list[i].Offset <= list[i-1].Offset {
							t.Errorf("message %d has number %d after %d", i, list[i].Offset, list[i-1].Offset)
						}
					}
				}
				c.as(eu, func() {
					const columns = "count(*) AS n, sum(amount) AS s, count(card) AS c, max(_key) AS k"
					for where, want := range map[string]string{
						"": `{"n":3,"s":36,"c":0,"k":null}`, " WHERE amount > 1000 OR card like 'card%' OR region <> 'eu'": `{"n":0,"s":null,"c":0,"k":null}`,
						" WHERE amount >= 12": `{"n":2,"s":25,"c":0,"k":null}`,
					} {
						if got := string(program.OK(t, nil, "query", "SELECT "+columns+" FROM \""+name+"\""+where, "-o", "jsonl")); got != want+"\n" {
							t.Errorf("%s: %s, want %s", where, got, want)
						}
					}
					r := program.Run(t, nil, "query", "SELECT * FROM \""+name+"\" WHERE amount > 5", "--explain")
					wantNone(t, "--explain", string(r.Stdout)+string(r.Stderr), secrets...)
					if r.Code != 0 {
						t.Errorf("--explain: %d %s", r.Code, r.Stderr)
					}
					// A group goes on where its last member ended, to the message.
					member := func(more ...string) string {
						return string(program.OK(t, nil, append([]string{"tail", name, "--group", name, "--member", "m", "--from", "earliest", "-o", "raw"}, more...)...))
					}
					if got, want := member("-n", "1")+member("--until-end")+member("--until-end"), strings.Join(f.masked, "\n")+"\n"; got != want {
						t.Errorf("a group gets %q, want %q", got, want)
					}
				})
				code, text := c.get(http.MethodGet, "/v1/query?format=csv&sql="+url.QueryEscape("SELECT * FROM \""+name+"\""), eu, "")
				if wantNone(t, "a query over HTTP", text, secrets...); code != http.StatusOK || strings.Count(text, "eu,") != 3 {
					t.Errorf("%d %s", code, text)
				}
				code, text = c.get(http.MethodGet, "/v1/tail/"+name+"?from=earliest&until_end=true", eu, "")
				if wantNone(t, "a tail over HTTP", text, secrets...); code != http.StatusOK || strings.Count(text, "eu") != 3 {
					t.Errorf("%d %s", code, text)
				}
				if code, text = c.get(http.MethodGet, "/v1/query?format=jsonl&sql="+url.QueryEscape("SELECT count(card) AS n FROM \""+name+"\""), whole, ""); code != http.StatusOK || text != fmt.Sprintf("{\"n\":%d}\n", f.cards) {
					t.Errorf("%d %s", code, text)
				}
			})
		}
	}
}

// TestRowsBesideOtherRights: what else a limited reader may do does not change what it reads: with write its library places messages, with manage or unlimited queries it knows the
// schema, and each way of reading is of the schema that its own rules show.
func TestRowsBesideOtherRights(t *testing.T) {
	c := startFormats(t)
	f := paymentFormats()["json"]
	c.createPayments(t, "payments", &f, "--shard-by", "field:card", "--delivery", "exactly_once")
	const limit = "read:payments where region = 'eu' hide card"
	writer := c.issue("--can", "write:payments", "--can", limit, "--name", "writer")
	manager := c.issue("--can", "manage:payments", "--can", "read,query:payments where region = 'eu' hide card", "--name", "manager")
	querier := c.issue("--can", "query:payments", "--can", limit, "--name", "querier")

	control := func(token string) rpc.ControlService { return rpc.NewControlClient(c.transport(token), c.URL) }
	describe := func(token string, reading bool) *scribev1.Category {
		res, err := control(token).GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "payments", ForReading: reading})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetCategory()
	}
	for token, of := range map[string]struct{ schema, layout bool }{writer: {false, true}, manager: {true, true}, querier: {true, true}} {
		got := describe(token, false)
		if strings.Contains(got.GetSchema(), "card") != of.schema || (got.GetShardField() == "card") != of.layout {
			t.Errorf("the category is %v", got)
		}
		if got = describe(token, true); strings.Contains(got.GetSchema(), "card") || got.GetShardField() != "" || !got.GetLayoutsForgotten() {
			t.Errorf("the category as it is read is %v", got)
		}
	}
	// The library of the writer learns from the list how messages are placed, which exactly_once requires.
	c.as(writer, func() {
		program.OK(t, strings.NewReader(`{"region":"eu","card":"card-eu-9","amount":14}`+"\n"), "produce", "payments", "--ack", "committed")
		got := string(program.OK(t, nil, "tail", "payments", "--from", "earliest", "--until-end", "-o", "raw"))
		if wantNone(t, "the writer", got, usRows, euCards, []string{"card"}); strings.Count(got, "eu") != 4 {
			t.Errorf("the writer reads %s", got)
		}
	})
	query := func(sql string) string { return string(program.OK(t, nil, "query", sql, "-o", "jsonl")) }
	for _, token := range []string{manager, querier} {
		c.as(token, func() {
			got := query("SELECT * FROM payments ORDER BY amount LIMIT 1")
			if wantNone(t, "a query by the library", got, []string{"card"}); got != "{\"region\":\"eu\",\"amount\":11}\n" {
				t.Errorf("by the library: %s", got)
			}
			if r := program.Run(t, nil, "query", "SELECT card FROM payments"); r.Code == 0 || strings.Contains(string(r.Stderr), "meant") {
				t.Errorf("a hidden column: %d, %s", r.Code, r.Stderr)
			}
		})
	}
	c.as(manager, func() {
		if got := string(program.OK(t, nil, "schema", "show", "payments")); !strings.Contains(got, "card") {
			t.Errorf("who may change the schema sees %s", got)
		}
	})
	for token, of := range map[string]struct{ sql, want string }{
		manager: {"SELECT * FROM payments ORDER BY amount LIMIT 1", `{"region":"eu","amount":11}`},
		querier: {"SELECT count(card) AS n, max(amount) AS m FROM payments", `{"n":5,"m":90002}`},
	} {
		if code, text := c.get(http.MethodGet, "/v1/query?format=jsonl&sql="+url.QueryEscape(of.sql), token, ""); code != http.StatusOK || text != of.want+"\n" {
			t.Errorf("over HTTP: %d %s, want %s", code, text, of.want)
		}
	}
	if code, text := c.get(http.MethodGet, "/v1/query?format=jsonl&sql="+url.QueryEscape("DESCRIBE payments"), manager, ""); code != http.StatusOK || strings.Contains(text, "card") {
		t.Errorf("what can be queried is described: %d %s", code, text)
	}
}

// TestMostLimits: as many and as long limits as can be granted work in every way of reading; more are refused when they are granted.
func TestMostLimits(t *testing.T) {
	c := startFormats(t)
	f := paymentFormats()["json"]
	var wide []string // columns whose names fill a limit
	for i := range 4 {
		wide = append(wide, fmt.Sprintf("wide%d%s", i, strings.Repeat("x", 245)))
		f.schema += "  - {name: " + wide[i] + ", type: string}\n"
	}
	c.createPayments(t, "payments", &f)
	var rules []string
	for i := range 16 {
		rules = append(rules, fmt.Sprintf("read,query:payments where region = 'eu' and amount < %d and amount not in (%s7) mask card, %s", 100+i, strings.Repeat("1000, ", 152), strings.Join(wide, ", ")))
	}
	if _, limit, _ := strings.Cut(rules[0], " "); len(limit) < restrict.MaxText-64 || len(limit) > restrict.MaxText {
		t.Fatalf("a limit of %d bytes is not the longest", len(limit))
	}
	program.OK(t, nil, append([]string{"grant", "alice"}, rules...)...)
	wantCode(t, program.Run(t, nil, "grant", "alice", "read:pay* mask amount"), 2, "17 different limits", `"payments"`, "16")
	program.OK(t, nil, "grant", "alice", "write:payments", "read:other mask x")
	program.OK(t, nil, "grant", "role:more", "query:payments hide card")
	wantCode(t, program.Run(t, nil, "grant", "alice", "role:more"), 2, "17 different limits")
	wantCode(t, program.Run(t, nil, "grant", "bob", "read:payments mask "+strings.Repeat("x", 3000)), 2, "at most 2048")
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("read:c%d where x in (%s1)", i, strings.Repeat("1, ", 330)))
	}
	program.OK(t, nil, append([]string{"grant", "carol"}, many...)...)
	wantCode(t, program.Run(t, nil, append([]string{"grant", "carol"}, func() (more []string) {
		for i := range 100 {
			more = append(more, strings.Replace(many[i], ":c", ":d", 1))
		}
		return more
	}()...)...), 2, "131072")

	alice := c.issue("--name", "alice")
	c.as(alice, func() {
		if got := string(program.OK(t, nil, "query", "SELECT count(*) AS n, count(card) AS c FROM payments", "-o", "jsonl")); got != "{\"n\":3,\"c\":0}\n" {
			t.Errorf("by the library: %s", got)
		}
	})
	if code, text := c.get(http.MethodGet, "/v1/query?format=jsonl&sql="+url.QueryEscape("SELECT count(*) AS n, count(card) AS c FROM payments"), alice, ""); code != http.StatusOK || text != "{\"n\":3,\"c\":0}\n" {
		t.Errorf("over HTTP: %d %s", code, text)
	}
	// A role that comes with too many more later denies the same in both, and the administrator sees why.
	program.OK(t, nil, "grant", "role:late", "write:other")
	program.OK(t, nil, "grant", "alice", "role:late")
	program.OK(t, nil, "grant", "role:late", "read,query:pay* mask amount")
	c.as(alice, func() {
		wantCode(t, program.Run(t, nil, "query", "SELECT amount FROM payments"), 4, "scribe access check")
	})
	if code, text := c.get(http.MethodGet, "/v1/query?sql="+url.QueryEscape("SELECT amount FROM payments"), alice, ""); code != http.StatusForbidden || !strings.Contains(text, "scribe access check") {
		t.Errorf("over HTTP: %d %s", code, text)
	}
	wantCode(t, program.Run(t, nil, "access", "check", "--as", "alice", "--do", "read", "--on", "payments"), 0, "nothing can be read now", "17 different limits")
}

// TestLimitedTenants: two tenants' payloads are in one block of one blob. Who is limited in its own category gets nothing of the other's, and nothing of its own beyond its limit, whatever
// pointer it makes of its own.
func TestLimitedTenants(t *testing.T) {
	c := startClosed(t)
	red, blue := twoTenants(t, c)
	limited := c.issue("--can", "read,query:"+red.category+" where length(payload) < 3", "--can", "group:"+red.category)
	entries, err := readEntries(t, c, limited, red.category)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	mine := entries[len(entries)-1]
	proxy := rpc.NewReadProxyClient(c.transport(limited), c.URL)
	own, theirs := decodeEntry(t, mine), decodeEntry(t, blue.entries[0])
	if stored := decodeEntry(t, red.entries[0]); own.BlockCRC == stored.BlockCRC || own.Blob != stored.Blob {
		t.Errorf("the checksum of the shared block is told: %+v", own)
	}
	changed := func(change func(*pointer.Pointer)) []byte {
		p := own
		change(&p)
		return pointer.Append(nil, &p)
	}
	for name, encoded := range map[string][]byte{
		"as it came":           mine.GetPointer(),
		"the whole block":      changed(func(p *pointer.Pointer) { p.Offset, p.Length = 0, p.BlockRawLen }),
		"the other's range":    changed(func(p *pointer.Pointer) { p.Offset, p.Length = theirs.Offset, theirs.Length }),
		"with the block's sum": changed(func(p *pointer.Pointer) { p.BlockCRC = theirs.BlockCRC }),
		"the other's pointer":  blue.entries[0].GetPointer(),
		"my unlimited pointer": red.entries[0].GetPointer(),
	} {
		for _, category := range []string{red.category, blue.category} {
			for _, encoding := range []scribev1.PayloadEncoding{
				scribev1.PayloadEncoding_PAYLOAD_ENCODING_RAW, scribev1.PayloadEncoding_PAYLOAD_ENCODING_JSON, scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW, scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK,
			} {
				for _, ticket := range [][]byte{mine.GetTicket(), blue.entries[0].GetTicket(), red.entries[0].GetTicket()} {
					res, err := proxy.Fetch(t.Context(), &scribev1.FetchRequest{Category: category, Encoding: encoding, Pointers: [][]byte{encoded}, Tickets: [][]byte{ticket}, AcceptsRestricted: true})
					text := fmt.Sprint(res.GetPayloads(), err)
					wantNone(t, name, text, []string{red.secret, blue.secret})
					allowed := name == "as it came" && category == red.category && encoding != scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK && bytes.Equal(ticket, mine.GetTicket())
					if (err == nil) != allowed {
						t.Errorf("%s of %s in encoding %v: %v", name, category, encoding, text)
					}
				}
			}
		}
	}
	c.as(limited, func() {
		for _, of := range []*tenant{red, blue} {
			r := program.Run(t, nil, "tail", of.category, "--from", "earliest", "--until-end")
			wantNone(t, "a tail", string(r.Stdout)+string(r.Stderr), []string{red.secret, blue.secret})
			if (r.Code == 0) != (of == red) {
				t.Errorf("%s: %d %s", of.category, r.Code, r.Stderr)
			}
		}
		if got := string(program.OK(t, nil, "query", "SELECT count(*) AS n FROM \""+red.category+"\"", "-o", "jsonl")); got != "{\"n\":0}\n" {
			t.Errorf("a query: %s", got)
		}
		wantNone(t, "the list", string(program.OK(t, nil, "category", "list", "-o", "json")), []string{blue.category})
	})
}

// TestLimitedFollower: who follows is cut off as soon as its grant changes or ends, and gets nothing after that which the grant does not show.
func TestLimitedFollower(t *testing.T) {
	c := startFormats(t)
	f := paymentFormats()["json"]
	c.createPayments(t, "payments", &f)
	program.OK(t, nil, "grant", "alice", "read:payments", "read:payments where region = 'eu' mask card")
	alice := c.issue("--name", "alice")
	for _, step := range []struct {
		revoke, says string
		messages     int
		cards        bool
	}{
		{"read:payments", "has changed", 5, true}, {"--all", "may not read", 3, false},
	} {
		r, err := consumer.New(c.URL, "payments", consumer.WithToken(alice), consumer.WithStart(consumer.Earliest()))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for m, err := range r.Records(t.Context()) {
			if err != nil {
				if !strings.Contains(err.Error(), step.says) {
					t.Errorf("without %s: %v, want %q", step.revoke, err, step.says)
				}
				break
			}
			if got = append(got, string(m.Payload)); len(got) == step.messages {
				program.OK(t, nil, "revoke", "alice", step.revoke)
			}
		}
		if len(got) != step.messages || strings.Contains(strings.Join(got, ""), "card") != step.cards {
			t.Errorf("before %s was taken: %q", step.revoke, got)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
