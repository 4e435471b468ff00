package test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/program"
)

const paymentsSchema = `format: json
fields:
  - {name: region, type: dictionary}
  - {name: card, type: dictionary}
  - {name: amount, type: int64}
`

// What nobody may see who is limited to the region eu and has no cards.
var (
	usRows  = []string{"us-1", "card-us-1", "us-2", "card-us-2", "90002"}
	euCards = []string{"card-eu-1", "card-eu-2"}
)

// paymentsCell is a closed cell with a category of payments, and the tokens of readers with different grants.
type paymentsCell struct {
	*closedCell
	eu, noCards, full string
}

func startPayments(t *testing.T) *paymentsCell {
	t.Helper()
	c := &paymentsCell{closedCell: startClosed(t)}
	file := filepath.Join(t.TempDir(), "payments.yaml")
	if err := os.WriteFile(file, []byte(paymentsSchema), 0o600); err != nil {
		t.Fatal(err)
	}
	program.OK(t, nil, "category", "create", "payments", "--schema", file, "--shards", "1")
	for _, line := range []string{
		`{"region":"eu","card":"card-eu-1","amount":11,"id":"eu-1"}`, `{"region":"us-1","card":"card-us-1","amount":90001}`,
		`{"region":"eu","card":"card-eu-2","amount":12}`, `{"region":"us-2","card":"card-us-2","amount":90002}`, `{"region":"eu","amount":13}`,
	} {
		program.OK(t, strings.NewReader(line+"\n"), "produce", "payments", "--key-field", "card", "--ack", "committed")
	}
	c.eu = c.issue("--can", "read,query:payments where region = 'eu' mask card", "--name", "eu")
	c.noCards = c.issue("--can", "read,query:pay* hide card, amount", "--name", "nocards")
	c.full = c.issue("--can", "read,query:payments", "--name", "full")
	return c
}

// wantNone fails if a text has one of some secrets.
func wantNone(t *testing.T, what, text string, secrets ...[]string) {
	t.Helper()
	for _, list := range secrets {
		for _, secret := range list {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q:\n%s", what, secret, text)
			}
		}
	}
}

// TestRowsAndColumns: a reader whose grant is limited gets the rows and columns of its grant in every way of reading, and nothing else.
func TestRowsAndColumns(t *testing.T) {
	c := startPayments(t)
	masked := "{\"region\":\"eu\",\"amount\":11}\n{\"region\":\"eu\",\"amount\":12}\n{\"region\":\"eu\",\"amount\":13}\n"
	rows := strings.ReplaceAll(masked, `,"amount"`, `,"card":null,"amount"`)
	t.Run("messages", func(t *testing.T) {
		c.as(c.eu, func() {
			if got := string(program.OK(t, nil, "tail", "payments", "--from", "earliest", "--until-end", "-o", "raw")); got != masked {
				t.Errorf("the reader of eu gets\n%s", got)
			}
			got := string(program.OK(t, nil, "tail", "payments", "--from", "earliest", "--until-end", "-o", "jsonl"))
			wantNone(t, "a tail in JSON", got, usRows, euCards)
			for where, want := range map[string]string{"card is null and amount > 12": `"amount":13`, "region <> 'eu'": "", "card like 'card%'": ""} {
				got := string(program.OK(t, nil, "tail", "payments", "--from", "earliest", "--until-end", "-o", "raw", "--where", where))
				if (got == "") != (want == "") || !strings.Contains(got, want) {
					t.Errorf("where %s: %q", where, got)
				}
			}
			checkpoint := filepath.Join(t.TempDir(), "checkpoint")
			var all string
			for range 4 {
				all += string(program.OK(t, nil, "tail", "payments", "--from", "earliest", "--until-end", "-n", "1", "-o", "raw", "--checkpoint", checkpoint))
			}
			if all != masked {
				t.Errorf("one after another with a checkpoint:\n%s", all)
			}
		})
		c.as(c.noCards, func() {
			got := string(program.OK(t, nil, "tail", "payments", "--from", "earliest", "--until-end", "-o", "raw"))
			if want := "{\"region\":\"eu\"}\n{\"region\":\"us-1\"}\n{\"region\":\"eu\"}\n{\"region\":\"us-2\"}\n{\"region\":\"eu\"}\n"; got != want {
				t.Errorf("the reader without cards gets\n%s", got)
			}
		})
		c.as(c.full, func() {
			if got := string(program.OK(t, nil, "tail", "payments", "--from", "earliest", "--until-end", "-o", "raw")); !strings.Contains(got, "card-us-2") || !strings.Contains(got, `"id":"eu-1"`) {
				t.Errorf("the reader of all gets\n%s", got)
			}
		})
	})

	query := func(t *testing.T, sql string, flags ...string) string {
		t.Helper()
		return string(program.OK(t, nil, append([]string{"query", sql, "-o", "jsonl"}, flags...)...))
	}
	t.Run("queries", func(t *testing.T) {
		// Whoever sees everything reads first: what is cached and known of payloads afterwards must not change what others get.
		c.as(c.full, func() {
			for range 2 {
				if got := query(t, "SELECT sum(amount) AS s FROM payments WHERE card like 'card-us%'"); got != "{\"s\":180003}\n" {
					t.Fatalf("all: %s", got)
				}
			}
		})
		c.as(c.eu, func() {
			for sql, want := range map[string]string{
				"SELECT count(*) AS n, min(amount) AS a, max(amount) AS b, count(card) AS c FROM payments": `{"n":3,"a":11,"b":13,"c":0}`,
				"SELECT count(*) AS n FROM payments WHERE card = 'card-us-1' OR amount > 1000":             `{"n":0}`,
				"SELECT count(*) AS n FROM payments WHERE card IS NULL":                                    `{"n":3}`,
				"SELECT coalesce(card, 'none') AS c, region FROM payments ORDER BY amount DESC LIMIT 1":    `{"c":"none","region":"eu"}`,
				"SELECT _key, _attr, _rest, _error FROM payments LIMIT 1":                                  `{"_key":null,"_attr":null,"_rest":null,"_error":null}`,
				"SELECT region, count(*) AS n FROM payments GROUP BY region":                               `{"region":"eu","n":3}`,
			} {
				if got := strings.TrimSpace(query(t, sql)); got != want {
					t.Errorf("%s\n%s, want %s", sql, got, want)
				}
			}
			explained := program.Run(t, nil, "query", "SELECT amount FROM payments WHERE amount > 1000", "--explain")
			text := string(explained.Stdout) + string(explained.Stderr)
			wantNone(t, "--explain", text, usRows, euCards)
			if explained.Code != 0 || regexp.MustCompile(`\b5\b( of \d+)? rows`).MatchString(text) || strings.Contains(text, "skipped") && !strings.Contains(text, "0 ") {
				t.Errorf("--explain: %s", text)
			}
		})
		c.as(c.noCards, func() {
			if got := query(t, "SELECT * FROM payments LIMIT 1"); strings.Contains(got, "card") || strings.Contains(got, "amount") {
				t.Errorf("all columns: %s", got)
			}
			for _, sql := range []string{"SELECT crad FROM payments", "SELECT card FROM payments", "SELECT region FROM payments WHERE amuont > 3"} {
				r := program.Run(t, nil, "query", sql)
				if r.Code == 0 || strings.Contains(string(r.Stderr), "meant") {
					t.Errorf("%s: exit code %d, %s", sql, r.Code, r.Stderr)
				}
			}
		})
	})

	t.Run("HTTP", func(t *testing.T) {
		ask := func(token, sql string) (int, string) {
			return c.get(http.MethodGet, "/v1/query?format=jsonl&sql="+url.QueryEscape(sql), token, "")
		}
		if code, text := ask(c.eu, "SELECT region, card, amount FROM payments ORDER BY amount"); code != http.StatusOK || text != rows {
			t.Errorf("%d %s", code, text)
		}
		if code, text := ask(c.full, "SELECT count(*) AS n FROM payments"); code != http.StatusOK || text != "{\"n\":5}\n" {
			t.Errorf("%d %s", code, text)
		}
		if code, text := ask(c.noCards, "DESCRIBE payments"); code != http.StatusOK || strings.Contains(text, "card") || strings.Contains(text, "amount") || !strings.Contains(text, "region") {
			t.Errorf("%d %s", code, text)
		}
		if code, text := ask(c.noCards, "SELECT crad FROM payments"); code != http.StatusBadRequest || strings.Contains(text, "card") {
			t.Errorf("%d %s", code, text)
		}
		code, text := c.get(http.MethodGet, "/v1/tail/payments?from=earliest&until_end=true", c.eu, "")
		if code != http.StatusOK || strings.Count(text, "eu") < 3 {
			t.Errorf("%d %s", code, text)
		}
		wantNone(t, "a tail over HTTP", text, usRows, euCards)
	})
	t.Run("Flight", func(t *testing.T) { c.flight(t) })
	t.Run("schemas", func(t *testing.T) {
		for _, token := range []string{c.eu, c.noCards} {
			control := rpc.NewControlClient(c.transport(token), c.URL)
			one, err := control.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "payments"})
			if err != nil {
				t.Fatal(err)
			}
			all, err := control.ListCategories(t.Context(), &scribev1.ListCategoriesRequest{})
			if err != nil || len(all.GetCategories()) != 1 {
				t.Fatalf("%v, %v", all, err)
			}
			for _, s := range []string{one.GetCategory().GetSchema(), all.GetCategories()[0].GetSchema()} {
				if !strings.Contains(s, "region") || strings.Contains(s, "card") != (token == c.eu) {
					t.Errorf("the schema is %s", s)
				}
			}
		}
	})
	t.Run("payloads", func(t *testing.T) { c.payloads(t) })
	t.Run("rights", func(t *testing.T) { c.changes(t) })
}

// flight reads over Flight SQL.
func (c *paymentsCell) flight(t *testing.T) {
	client, err := flightsql.NewClient(strings.TrimPrefix(c.URL, "http://"), nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	}
	read := func(ctx context.Context, ticket *flight.Ticket) (text string, rows int64) {
		r, err := client.DoGet(ctx, ticket)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		for r.Next() {
			b, err := r.RecordBatch().MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			text, rows = text+string(b), rows+r.RecordBatch().NumRows()
		}
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
		return text, rows
	}
	// The ticket of Flight is a query: it is answered for who brings it.
	info, err := client.Execute(as(c.full), "SELECT card, amount, region FROM payments")
	if err != nil {
		t.Fatal(err)
	}
	if _, rows := read(as(c.full), info.GetEndpoint()[0].GetTicket()); rows != 5 {
		t.Errorf("who sees all gets %d rows", rows)
	}
	text, rows := read(as(c.eu), info.GetEndpoint()[0].GetTicket())
	if wantNone(t, "Flight", text, usRows, euCards); rows != 3 {
		t.Errorf("the reader of eu gets %d rows: %s", rows, text)
	}
	tables, err := client.GetTables(as(c.noCards), &flightsql.GetTablesOpts{IncludeSchema: true})
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.DoGet(as(c.noCards), tables.GetEndpoint()[0].GetTicket())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	for r.Next() {
		at := r.RecordBatch().Schema().FieldIndices("table_schema")[0]
		s, err := flight.DeserializeSchema([]byte(r.RecordBatch().Column(at).(interface{ Value(int) []byte }).Value(0)), memory.DefaultAllocator)
		if err != nil || s.HasField("card") || s.HasField("amount") || !s.HasField("region") {
			t.Errorf("the table's schema is %v, %v", s, err)
		}
	}
}

// payloads fetches pointers, also those of others, and those that were changed.
func (c *paymentsCell) payloads(t *testing.T) {
	mine, err := readEntries(t, c.closedCell, c.eu, "payments")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := readEntries(t, c.closedCell, c.full, "payments")
	if err != nil {
		t.Fatal(err)
	}
	if p := decodeEntry(t, mine[0]); p.Messages != 1 || p.Frames != 1 || p.MinTime != p.Blob.Time() || p.MaxTime != p.MinTime {
		t.Errorf("the pointer has counts and times: %+v", p)
	}
	requestOf := func(entries, tickets []*scribev1.StreamEntry) *scribev1.FetchRequest {
		req := &scribev1.FetchRequest{Category: "payments", AcceptsRestricted: true}
		for i := range min(len(entries), len(tickets)) {
			req.Pointers, req.Tickets = append(req.Pointers, entries[i].GetPointer()), append(req.Tickets, tickets[i].GetTicket())
		}
		return req
	}
	proxy := func(token string) rpc.ReadProxyService { return rpc.NewReadProxyClient(c.transport(token), c.URL) }
	view := &scribev1.View{Query: &scribev1.Query{Text: "SELECT region, card, amount FROM payments WHERE amount > 1000", SchemaVersion: 1, Now: 1}}
	for name, change := range map[string]func(*scribev1.FetchRequest){
		"raw":   func(*scribev1.FetchRequest) {},
		"JSON":  func(r *scribev1.FetchRequest) { r.Encoding = scribev1.PayloadEncoding_PAYLOAD_ENCODING_JSON },
		"Arrow": func(r *scribev1.FetchRequest) { r.Encoding = scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW },
		"a view": func(r *scribev1.FetchRequest) {
			r.Encoding, r.View = scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW, view
		},
	} {
		req := requestOf(mine, mine)
		change(req)
		res, err := proxy(c.eu).Fetch(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, p := range res.GetPayloads() {
			if p.GetError() != nil || p.GetRestricted() == nil {
				t.Errorf("%s: %v, %v", name, p.GetError(), p.GetRestricted())
			}
			wantNone(t, name, string(p.GetData()), usRows, euCards)
			if name == "a view" && p.GetView().GetExact() {
				t.Error("a view for a limited reader says that the reader's predicate was applied")
			}
		}
		// The same pointers, as who sees all: the full payload. Then again as the first: nothing of that is in what is cached.
		if again, err := proxy(c.full).Fetch(t.Context(), func() *scribev1.FetchRequest { r := requestOf(theirs, theirs); change(r); return r }()); err != nil || again.GetPayloads()[0].GetRestricted() != nil {
			t.Errorf("%s of who sees all: %v, %v", name, again, err)
		}
		if again, err := proxy(c.eu).Fetch(t.Context(), proto.CloneOf(req)); err != nil || !bytes.Equal(again.GetPayloads()[0].GetData(), res.GetPayloads()[0].GetData()) {
			t.Errorf("%s again: %v, %v", name, again, err)
		}
	}
	refused := map[string]struct {
		token string
		req   *scribev1.FetchRequest
	}{
		"their pointer with their ticket": {c.eu, requestOf(theirs, theirs)},
		"their pointer with my ticket":    {c.eu, requestOf(theirs, mine)},
		"my pointer with their ticket":    {c.eu, requestOf(mine, theirs)},
		"mine, by them":                   {c.full, requestOf(mine, mine)},
		"mine, by one with other limits":  {c.noCards, requestOf(mine, mine)},
		"without tickets":                 {c.eu, &scribev1.FetchRequest{Category: "payments", Pointers: requestOf(mine, mine).GetPointers(), AcceptsRestricted: true}},
		"the block": {c.eu, func() *scribev1.FetchRequest {
			r := requestOf(mine, mine)
			r.Encoding = scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK
			return r
		}()},
		"as a peer":                        {c.eu, func() *scribev1.FetchRequest { r := requestOf(mine, mine); r.Peer = true; return r }()},
		"by a client that knows no limits": {c.eu, func() *scribev1.FetchRequest { r := requestOf(mine, mine); r.AcceptsRestricted = false; return r }()},
		"a column that is hidden":          {c.noCards, &scribev1.FetchRequest{Category: "payments", Encoding: scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW, View: view, AcceptsRestricted: true}},
	}
	hidden, err := readEntries(t, c.closedCell, c.noCards, "payments")
	if err != nil {
		t.Fatal(err)
	}
	last := refused["a column that is hidden"].req
	last.Pointers, last.Tickets = requestOf(hidden, hidden).GetPointers(), requestOf(hidden, hidden).GetTickets()
	for name, of := range refused {
		res, err := proxy(of.token).Fetch(t.Context(), of.req)
		if err == nil {
			t.Errorf("%s: %d payloads", name, len(res.GetPayloads()))
			continue
		}
		wantNone(t, name, err.Error(), usRows, euCards, []string{"meant"})
	}
	// A header of members means nothing of others.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.URL+"/scribe.v1.ControlService/GetCategory", strings.NewReader(`{"name":"payments"}`))
	if err != nil {
		t.Fatal(err)
	}
	wide, err := restrict.ParseLimit("where true")
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.noCards)
	req.Header.Set(restrict.Header, restrict.New(wide).Encode())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if body, err := io.ReadAll(res.Body); err != nil || strings.Contains(string(body), "card") || !strings.Contains(string(body), "region") {
		t.Errorf("with the header of a member: %s, %v", body, err)
	}
}

// changes changes grants and the schema.
func (c *paymentsCell) changes(t *testing.T) {
	wantCode(t, program.Run(t, nil, "access", "check", "--token-id", tokenID(c.eu), "--do", "read", "--on", "payments"), 0, "limited: where region = 'eu' mask card")
	wantCode(t, program.Run(t, nil, "grant", "x", "read:payments where regoin = 'eu'"), 2, "regoin")
	wantCode(t, program.Run(t, nil, "grant", "x", "read,group:payments where region = 'eu'"), 2, "only read and query can be limited")
	wantCode(t, program.Run(t, nil, "grant", "x", "read:owner=shop where region = 'eu'"), 2, "owner")

	// Of several grants each shows what it shows; one without a limit shows all.
	alice := c.issue("--name", "alice")
	sums := func() string {
		var out string
		c.as(alice, func() {
			out = strings.TrimSpace(string(program.OK(t, nil, "query", "SELECT count(*) AS n, count(card) AS c, sum(amount) AS s FROM payments", "-o", "jsonl")))
		})
		return out
	}
	for _, step := range []struct {
		do, rule, want string
	}{
		{"grant", "read:payments where region = 'eu'", `{"n":3,"c":2,"s":36}`},
		{"grant", "read:payments where amount < 12 or region like 'us%' mask amount", `{"n":5,"c":4,"s":36}`},
		{"grant", "read:pay*", `{"n":5,"c":4,"s":180039}`},
		{"revoke", "read:pay*", `{"n":5,"c":4,"s":36}`},
		{"revoke", "read:payments where region = 'eu'", `{"n":3,"c":3,"s":null}`},
	} {
		program.OK(t, nil, step.do, "alice", step.rule)
		if got := sums(); got != step.want {
			t.Errorf("%s %s: %s, want %s", step.do, step.rule, got, step.want)
		}
	}
	var grants struct{ Rules []string }
	if err := json.Unmarshal(program.OK(t, nil, "grants", "-o", "json"), &grants); err != nil || len(grants.Rules) != 1 {
		t.Errorf("%v, %v", grants, err)
	}

	// A column that a limit names is gone: nothing is read, until it is granted anew.
	file := filepath.Join(t.TempDir(), "less.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(paymentsSchema, "name: card", "name: number, path: [card]")), 0o600); err != nil {
		t.Fatal(err)
	}
	program.OK(t, nil, "schema", "set", "payments", file, "--force")
	c.as(c.eu, func() {
		for _, r := range []program.Result{
			program.Run(t, nil, "tail", "payments", "--from", "earliest", "--until-end"), program.Run(t, nil, "query", "SELECT region FROM payments"),
		} {
			wantCode(t, r, 4, "scribe access check")
			wantNone(t, "the refusal", string(r.Stdout)+string(r.Stderr), usRows, euCards, []string{"number"})
		}
	})
	if code, text := c.get(http.MethodGet, "/v1/query?sql="+url.QueryEscape("SELECT region FROM payments"), c.eu, ""); code != http.StatusForbidden {
		t.Errorf("%d %s", code, text)
	}
	wantCode(t, program.Run(t, nil, "access", "check", "--token-id", tokenID(c.eu), "--do", "read", "--on", "payments"), 0, "nothing can be read now", `"card"`)
}

// tokenID is the id in a token's text.
func tokenID(text string) string { return strings.Split(text, "_")[1] }
