package enforce

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"scribe/columnar/schema"
	"scribe/internal/cell/access"
	"scribe/internal/format/pointer"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// schemas are categories with a schema.
type schemas map[string]*scribev1.Category

func (s schemas) Lookup(name string) (*scribev1.Category, bool) { c, ok := s[name]; return c, ok }

func (s schemas) Resolve(_ context.Context, name string) (*scribev1.Category, error) {
	if c, ok := s[name]; ok {
		return c, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "it does not exist")
}

func categoryOf(t *testing.T, name, fields string) *scribev1.Category {
	t.Helper()
	s, err := schema.Parse([]byte("format: json\nfields: [" + fields + "]\n"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := schema.ParseHistory("")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Append(s, false); err != nil {
		t.Fatal(err)
	}
	return &scribev1.Category{Name: name, Id: 1, Schema: h.Marshal(), ShardBy: scribev1.ShardBy_SHARD_BY_FIELD, ShardField: "card"}
}

// newRestricted is newEnforcer with categories that have schemas; rules are separated by semicolons.
func newRestricted(t *testing.T, c schemas, grants map[string]string) (*Enforcer, *rights) {
	t.Helper()
	e, r := newEnforcer(t, nil, "admin all:*")
	r.replace(grantedSet(t, r.Set(), grants))
	e.SetCategories(c)
	return e, r
}

func grantedSet(t *testing.T, set *access.Set, grants map[string]string) *access.Set {
	t.Helper()
	put := map[string][]byte{}
	for name, text := range grants {
		rules, err := access.ParseRules(strings.Split(text, "; "), true)
		if err != nil {
			t.Fatal(err)
		}
		put[access.GrantKey(name)] = encode(t, &scribev1.AccessGrant{Principal: name, Rules: rules})
	}
	next, damaged := set.Apply(put, nil)
	if len(damaged) > 0 {
		t.Fatal(damaged)
	}
	return next
}

// limitsFor is to what somebody is limited in reading payments.
func limitsFor(e *Enforcer, who string) *restrict.Restriction {
	return e.decide(as(who), principal.FromContext(as(who)), access.Read, "payments").limited
}

const paymentFields = "{name: region, type: string}, {name: card, type: string}, {name: amount, type: int64}"

// openedStreams sends the category, and then a pointer with counts and one that was left out.
type openedStreams struct {
	rpc.ReadStreamService
	category *scribev1.Category
	started  chan *scribev1.StreamStart
}

func (s openedStreams) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	req, err := recv(ctx)
	if err != nil {
		return err
	}
	s.started <- req.GetStart()
	p := pointer.Pointer{
		Blob: pointer.BlobID{6: 0x70, 8: 0x80}, Class: 72, Codec: pointer.CodecNone, BlockOffset: 128, BlockLen: 5000, BlockRawLen: 5000, Offset: 100, Length: 10,
		Frames: 3, Messages: 77, MinTime: 1000, MaxTime: 2000,
	}
	for _, res := range []*scribev1.StreamResponse{
		{Step: &scribev1.StreamResponse_Opened{Opened: &scribev1.StreamOpened{Category: s.category}}},
		{Step: &scribev1.StreamResponse_Entries{Entries: &scribev1.StreamEntries{
			Entries: []*scribev1.StreamEntry{{Shard: 1 << 32, Lsn: 7, Pointer: pointer.Append(nil, &p)}}, Skipped: []*scribev1.StreamSkip{{Shard: 1, From: 3, To: 5, Messages: 9, Bytes: 4}},
		}}},
	} {
		if err := send(res); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// openRestricted opens a stream, and returns its first two messages and where its end will be.
func openRestricted(ctx context.Context, s rpc.ReadStreamService, start *scribev1.StreamStart) (opened *scribev1.StreamOpened, entries *scribev1.StreamEntries, ended chan error) {
	messages, ended := make(chan *scribev1.StreamResponse, 2), make(chan error, 1)
	go func() {
		ended <- s.Stream(ctx, func(context.Context) (*scribev1.StreamRequest, error) {
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}, nil
		}, func(res *scribev1.StreamResponse) error {
			messages <- res
			return nil
		})
	}()
	for range 2 {
		select {
		case m := <-messages:
			if opened == nil {
				opened = m.GetOpened()
			} else {
				entries = m.GetEntries()
			}
		case err := <-ended:
			ended <- err
			return opened, entries, ended
		}
	}
	return opened, entries, ended
}

// TestRestrictedStreams: what a stream says before any payload tells nothing of rows and columns that the reader may not see, and it ends when these change.
func TestRestrictedStreams(t *testing.T) {
	c := schemas{"payments": categoryOf(t, "payments", paymentFields), "odd": categoryOf(t, "odd", "{name: n, type: int64}")}
	e, r := newRestricted(t, c, map[string]string{
		"alice": "read:payments where region = 'eu' hide card; read:odd hide card", "bob": "read:payments",
	})
	inner := openedStreams{category: c["payments"], started: make(chan *scribev1.StreamStart, 1)}
	s := e.Services(rpc.Services{ReadStream: inner}).ReadStream
	start := func() *scribev1.StreamStart {
		return &scribev1.StreamStart{Category: "payments", Filter: &scribev1.Query{Text: "SELECT region FROM payments WHERE card = 'x'", SchemaVersion: 1, Now: 1}}
	}
	opened, entries, ended := openRestricted(as("alice"), s, start())
	if begun := <-inner.started; begun.GetFilter() != nil {
		t.Errorf("zone maps are asked for the reader's query: %v", begun.GetFilter())
	}
	if text := opened.GetCategory().GetSchema(); strings.Contains(text, "card") || !strings.Contains(text, "amount") || opened.GetCategory().GetShardField() != "" {
		t.Errorf("the reader knows the category as %v", opened.GetCategory())
	}
	p, err := pointer.Decode(entries.GetEntries()[0].GetPointer())
	if err != nil || p.Messages != 1 || p.Frames != 1 || p.MinTime != p.Blob.Time() || p.MaxTime != p.Blob.Time() || p.Length != 10 {
		t.Errorf("the pointer is %+v, %v", p, err)
	}
	if skip := entries.GetSkipped()[0]; skip.GetMessages() != 0 || skip.GetTo() != 5 {
		t.Errorf("what was left out: %v", skip)
	}
	limited := limitsFor(e, "alice")
	if _, cause := r.Set().CheckTicket(entries.GetEntries()[0].GetTicket(), principal.FromContext(as("alice")), "payments", entries.GetEntries()[0].GetPointer(), limited, e.now()); cause != access.Allowed {
		t.Errorf("the ticket: %q", cause)
	}
	if c["payments"].GetShardField() == "" || !strings.Contains(c["payments"].GetSchema(), "card") {
		t.Error("the category itself was changed")
	}
	// Another right ends it, also a wider one.
	r.replace(grantedSet(t, r.Set(), map[string]string{"alice": "read:payments"}))
	wantReason(t, <-ended, scribev1.Reason_REASON_TICKET_EXPIRED)
	opened, entries, _ = openRestricted(as("bob"), s, start())
	if begun := <-inner.started; begun.GetFilter() == nil || !strings.Contains(opened.GetCategory().GetSchema(), "card") {
		t.Errorf("who sees all: %v, %v", begun, opened)
	}
	if p, err := pointer.Decode(entries.GetEntries()[0].GetPointer()); err != nil || p.Messages != 77 {
		t.Errorf("who sees all gets the pointer %+v, %v", p, err)
	}
	// A limit that can't be told opens nothing, and does not say why.
	r.replace(grantedSet(t, r.Set(), map[string]string{"alice": "read:payments; read:odd hide card"}))
	_, _, ended = openRestricted(as("alice"), s, &scribev1.StreamStart{Category: "odd"})
	if err := <-ended; rpc.ReasonOf(err) != denied || strings.Contains(err.Error(), "card") {
		t.Errorf("a hidden column that is not there: %v", err)
	}
}

// restrictedPayloads keeps the restriction of the last fetch.
type restrictedPayloads struct{ last *restrict.Restriction }

func (p *restrictedPayloads) Fetch(ctx context.Context, _ *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	p.last = restrict.FromContext(ctx)
	return &scribev1.FetchResponse{}, nil
}

// TestRestrictedFetch: the read proxy learns with the context to what the reader is limited, and no reader without it.
func TestRestrictedFetch(t *testing.T) {
	c := schemas{"payments": categoryOf(t, "payments", paymentFields)}
	e, r := newRestricted(t, c, map[string]string{"alice": "read:payments where region = 'eu'", "bob": "read:payments", "all": "read:*; read:payments mask card", "some": "read:* mask card"})
	inner := &restrictedPayloads{}
	s := e.Services(rpc.Services{ReadProxy: inner}).ReadProxy
	encoded := pointerOf(100, 10)
	request := func(who string, limited *restrict.Restriction) *scribev1.FetchRequest {
		ticket := r.Set().SignTicket(principal.FromContext(as(who)), "payments", access.Place{Shard: 1, LSN: 2}, encoded, access.Limits{Restriction: limited, Schema: 1}, e.now())
		return &scribev1.FetchRequest{Category: "payments", Pointers: [][]byte{encoded}, Tickets: [][]byte{ticket}, AcceptsRestricted: true}
	}
	for who, want := range map[string]string{"alice": "where region = 'eu'", "bob": "", "all": "", "some": "mask card"} {
		inner.last = nil
		if _, err := s.Fetch(as(who), request(who, limitsFor(e, who))); err != nil || strings.Join(inner.last.Texts(), ";") != want {
			t.Errorf("%s: limited to %q, %v; want %q", who, inner.last.Texts(), err, want)
		}
	}
	// Who may read everything in part needs tickets.
	without := request("some", nil)
	without.Tickets = nil
	_, err := s.Fetch(as("some"), without)
	wantReason(t, err, denied)
	// While read stream and read proxy do not agree, nothing is served.
	for _, other := range []*restrict.Restriction{nil, limitsFor(e, "some")} {
		_, err := s.Fetch(as("alice"), request("alice", other))
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
	}
	_, err = s.Fetch(as("bob"), request("bob", limitsFor(e, "alice")))
	wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
	old := request("alice", limitsFor(e, "alice"))
	old.AcceptsRestricted = false
	_, err = s.Fetch(as("alice"), old)
	wantReason(t, err, scribev1.Reason_REASON_INVALID)
	// The schema changes: the rule can't be told any more.
	c["payments"] = categoryOf(t, "payments", "{name: card, type: string}")
	_, err = s.Fetch(as("alice"), request("alice", limitsFor(e, "alice")))
	if wantReason(t, err, denied); strings.Contains(err.Error(), "region") {
		t.Errorf("the denial names a column: %v", err)
	}
}

// TestImposedRestriction: what a member says of whom it reads for counts, is repeated, and is read by nobody else.
func TestImposedRestriction(t *testing.T) {
	c := schemas{"payments": categoryOf(t, "payments", paymentFields)}
	e, _ := newRestricted(t, c, map[string]string{"bob": "read:payments"})
	limit, err := restrict.ParseLimit("where region = 'eu'")
	if err != nil {
		t.Fatal(err)
	}
	r := restrict.New(limit)
	var seen context.Context //nolint:containedctx // of the last request
	h := e.Protect(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { seen = req.Context() }))
	call := func(of principal.Principal, headers ...string) *httptest.ResponseRecorder {
		seen = nil
		req := httptest.NewRequestWithContext(principal.NewContext(t.Context(), of), http.MethodPost, "/scribe.v1.ReadProxyService/Fetch", http.NoBody)
		for _, text := range headers {
			req.Header.Add(restrict.Header, text)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}
	member, bob := principal.Principal{Kind: principal.Member, Name: "m"}, principal.Principal{Kind: principal.Client, Name: "bob"}
	if w := call(member, r.Encode()); seen == nil || e.decide(seen, principal.FromContext(seen), access.Read, "payments").limited.Digest() != r.Digest() || w.Header().Get(restrict.Header) != r.Digest().Text() {
		t.Errorf("a member's: %v", w.Header())
	}
	imposed := seen
	if w := call(member); seen == nil || e.decide(seen, principal.FromContext(seen), access.Read, "payments").limited != nil || w.Header().Get(restrict.Header) != "" {
		t.Errorf("a member for itself: %v", w.Header())
	}
	if w := call(bob, r.Encode()); seen == nil || restrict.FromContext(seen) != nil || w.Header().Get(restrict.Header) != "" {
		t.Errorf("a client's: %v", w.Header())
	}
	for _, headers := range [][]string{{"x"}, {r.Encode(), r.Encode()}, {"W10"}} {
		if w := call(member, headers...); seen != nil || w.Code == http.StatusOK {
			t.Errorf("%q: %d", headers, w.Code)
		}
	}
	inner := &restrictedPayloads{}
	services := e.Services(rpc.Services{ReadProxy: inner})
	if _, err := services.ReadProxy.Fetch(imposed, &scribev1.FetchRequest{Category: "payments", Pointers: [][]byte{pointerOf(1, 2)}, AcceptsRestricted: true}); err != nil || inner.last.Digest() != r.Digest() {
		t.Errorf("a member's fetch: %v, %v", inner.last.Texts(), err)
	}
	for _, req := range []*scribev1.FetchRequest{{Category: "payments", Peer: true}, {Category: "payments", Encoding: scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK}, {Category: "gone", AcceptsRestricted: true}} {
		if _, err := services.ReadProxy.Fetch(imposed, req); err == nil {
			t.Errorf("%v was served", req)
		}
	}
}
