package enforce

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"scribe/columnar/schema/schematest"
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
	h := schematest.History(t, "format: json\nfields: ["+fields+"]\n")
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
	if !opened.GetRestricted() {
		t.Error("the reader does not hear that pointers count nothing")
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
	if begun := <-inner.started; begun.GetFilter() == nil || opened.GetRestricted() || !strings.Contains(opened.GetCategory().GetSchema(), "card") {
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
type restrictedPayloads struct {
	last  *restrict.Restriction
	least uint32
}

func (p *restrictedPayloads) Fetch(ctx context.Context, _ *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	p.last, p.least = restrict.FromContext(ctx), restrict.FromContext(ctx).Least()
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
	var seen context.Context                                                                                  //nolint:containedctx // of the last request
	h := e.Protect(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { seen = req.Context() })) //nolint:fatcontext // a new request's each time
	call := func(of principal.Principal, headers ...string) *httptest.ResponseRecorder {
		seen = nil //nolint:fatcontext // none
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
	for _, headers := range [][]string{{"x"}, {r.Encode(), r.Encode()}, {"0:W10"}, {r.Encode()[1:]}} {
		if w := call(member, headers...); seen != nil || w.Code == http.StatusOK {
			t.Errorf("%q: %d", headers, w.Code)
		}
	}
	inner := &restrictedPayloads{}
	services := e.Services(rpc.Services{ReadProxy: inner})
	if _, err := services.ReadProxy.Fetch(imposed, &scribev1.FetchRequest{Category: "payments", Pointers: [][]byte{pointerOf(1, 2)}, AcceptsRestricted: true}); err != nil || inner.last.Digest() != r.Digest() {
		t.Errorf("a member's fetch: %v, %v", inner.last.Texts(), err)
	}
	call(member, r.Over(9).Encode())
	if _, err := services.ReadProxy.Fetch(seen, &scribev1.FetchRequest{Category: "payments", Pointers: [][]byte{pointerOf(1, 2)}, AcceptsRestricted: true}); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
		t.Errorf("a member's fetch over a newer schema than the process knows: %v", err)
	}
	for _, req := range []*scribev1.FetchRequest{{Category: "payments", Peer: true}, {Category: "payments", Encoding: scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK}, {Category: "gone", AcceptsRestricted: true}} {
		if _, err := services.ReadProxy.Fetch(imposed, req); err == nil {
			t.Errorf("%v was served", req)
		}
	}
}

// flickering are rights that are others for one look at them.
type flickering struct {
	*rights
	once  *access.Set
	at    int
	looks int
}

func (f *flickering) Set() *access.Set {
	if f.looks++; f.looks == f.at {
		return f.once
	}
	return f.rights.Set()
}

// TestOneLook: rights that change while a request is decided about serve it under one or the other, and never under what is neither's; who has no limits is looked at as often as ever.
func TestOneLook(t *testing.T) {
	c := schemas{"payments": categoryOf(t, "payments", paymentFields)}
	e, r := newRestricted(t, c, map[string]string{"alice": "read:payments where region = 'eu'", "bob": "read:payments"})
	none, full := grantedSet(t, r.Set(), map[string]string{"alice": "write:other"}), grantedSet(t, r.Set(), map[string]string{"alice": "read:payments"})
	limited, encoded := limitsFor(e, "alice"), pointerOf(100, 10)
	request := func(who string, limits access.Limits) *scribev1.FetchRequest {
		ticket := r.Set().SignTicket(principal.FromContext(as(who)), "payments", access.Place{Shard: 1, LSN: 2}, encoded, limits, e.now())
		return &scribev1.FetchRequest{Category: "payments", Pointers: [][]byte{encoded}, Tickets: [][]byte{ticket}, AcceptsRestricted: true}
	}
	inner := &restrictedPayloads{}
	s := e.Services(rpc.Services{ReadProxy: inner}).ReadProxy
	for what, once := range map[string]*access.Set{"no right": none, "no limits": full} {
		for at := 1; at <= 6; at++ {
			flicker := &flickering{rights: r, once: once, at: at}
			e.rights, inner.last = flicker, nil
			if _, err := s.Fetch(as("alice"), request("alice", access.Limits{Restriction: limited, Schema: 1})); err == nil && inner.last.Digest() != limited.Digest() {
				t.Errorf("%s for look %d: served under %q", what, at, inner.last.Texts())
			}
			flicker.looks = 0
			if watched, under, cancel, err := e.BeginRead(as("alice"), access.Read, "payments"); err == nil {
				if _, may := map[restrict.Digest]bool{limited.Digest(): true, (restrict.Digest{}): once == full}[under.Digest()]; !may || under == nil && once != full {
					t.Errorf("%s for look %d: a stream under %q", what, at, under.Texts())
				}
				cancel()
				<-watched.Done()
			}
		}
	}
	counted := &flickering{rights: r}
	e.rights = counted
	if _, err := s.Fetch(as("bob"), request("bob", access.Limits{})); err != nil || inner.last != nil || counted.looks > 2 {
		t.Errorf("who has no limits: %d looks at the rights, %v", counted.looks, err)
	}
	e.rights = r
}

// staleSchemas are a copy of categories that is behind the control plane's. asked counts the questions.
type staleSchemas struct {
	mu          sync.Mutex // of all: streams look at the rights of their callers beside the test
	old, newest schemas
	asked       int
}

// set replaces the copy, and what the control plane has.
func (s *staleSchemas) set(old, newest schemas) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old, s.newest = old, newest
}

func (s *staleSchemas) Lookup(name string) (*scribev1.Category, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.old.Lookup(name)
}

func (s *staleSchemas) Resolve(ctx context.Context, name string) (*scribev1.Category, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.newest.Resolve(ctx, name)
}

// TestStaleSchema: a process whose copy of a schema is old asks once before it denies, and does not serve what another process has seen in a newer schema.
func TestStaleSchema(t *testing.T) {
	old := schemas{"payments": categoryOf(t, "payments", "{name: region, type: string}")}
	c := &staleSchemas{old: old, newest: schemas{"payments": categoryOf(t, "payments", paymentFields)}}
	e, r := newRestricted(t, nil, map[string]string{"alice": "read:payments mask card"})
	e.SetCategories(c)
	inner := &restrictedPayloads{}
	s := e.Services(rpc.Services{ReadProxy: inner}).ReadProxy
	limited, encoded := limitsFor(e, "alice"), pointerOf(100, 10)
	fetch := func(version uint32) error {
		ticket := r.Set().SignTicket(principal.FromContext(as("alice")), "payments", access.Place{Shard: 1, LSN: 2}, encoded, access.Limits{Restriction: limited, Schema: version}, e.now())
		_, err := s.Fetch(as("alice"), &scribev1.FetchRequest{Category: "payments", Pointers: [][]byte{encoded}, Tickets: [][]byte{ticket}, AcceptsRestricted: true})
		return err
	}
	if err := fetch(1); err != nil || c.asked != 1 || inner.last.Digest() != limited.Digest() || inner.least != 1 {
		t.Errorf("with an old copy: asked %d times, least version %d, %v", c.asked, inner.least, err)
	}
	wantReason(t, fetch(2), scribev1.Reason_REASON_NO_BACKEND) // it is on its way here
	c.set(old, old)
	before := c.asked
	wantReason(t, fetch(1), denied)
	if c.asked != before+1 {
		t.Errorf("asked %d times before the denial", c.asked-before)
	}
	// A stream whose limits can't be told any more ends with the denial.
	fresh := schemas{"payments": categoryOf(t, "payments", paymentFields)}
	c.set(fresh, old)
	streams := openedStreams{category: fresh["payments"], started: make(chan *scribev1.StreamStart, 1)}
	messages := 0
	err := e.Services(rpc.Services{ReadStream: streams}).ReadStream.Stream(as("alice"), func(context.Context) (*scribev1.StreamRequest, error) {
		return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{Category: "payments"}}}, nil
	}, func(*scribev1.StreamResponse) error {
		messages++
		c.set(old, old)
		return nil
	})
	if wantReason(t, err, denied); messages != 1 || strings.Contains(err.Error(), "card") {
		t.Errorf("%d messages, then %v", messages, err)
	}
}

// TestListWithoutSchemas: of a category that is listed without its schema a limited reader learns no layout, and its limits are not tried on what was not asked for.
func TestListWithoutSchemas(t *testing.T) {
	c := schemas{"payments": categoryOf(t, "payments", paymentFields)}
	e, _ := newRestricted(t, c, map[string]string{"alice": "read:payments mask card"})
	var log bytes.Buffer
	e.tables = restrict.NewCache(slog.New(slog.NewTextHandler(&log, nil)))
	bare := proto.CloneOf(c["payments"])
	bare.Schema = ""
	s := e.Services(rpc.Services{Control: &plane{list: []*scribev1.Category{bare}, page: 10}}).Control
	res, err := s.ListCategories(as("alice"), &scribev1.ListCategoriesRequest{WithoutSchemas: true})
	if err != nil || len(res.GetCategories()) != 1 || res.GetCategories()[0].GetShardField() != "" || !res.GetCategories()[0].GetLayoutsForgotten() {
		t.Errorf("%v, %v", res, err)
	}
	if log.Len() > 0 {
		t.Errorf("it was logged that limits can't be applied: %s", &log)
	}
}

// TestOldRightsAreCounted: that read stream and read proxy do not agree is counted, as docs/operations.md says, and is nobody's attempt.
func TestOldRightsAreCounted(t *testing.T) {
	c := schemas{"payments": categoryOf(t, "payments", paymentFields)}
	e, r := newRestricted(t, c, map[string]string{"alice": "read:payments mask card"})
	encoded := pointerOf(100, 10)
	ticket := r.Set().SignTicket(principal.FromContext(as("alice")), "payments", access.Place{}, encoded, access.Limits{}, e.now())
	_, err := e.Services(rpc.Services{ReadProxy: &restrictedPayloads{}}).ReadProxy.Fetch(as("alice"), &scribev1.FetchRequest{
		Category: "payments", Pointers: [][]byte{encoded}, Tickets: [][]byte{ticket}, AcceptsRestricted: true,
	})
	wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
	if n := testutil.ToFloat64(e.denials.WithLabelValues(string(access.OldRights))); n != 1 {
		t.Errorf("%v denials are counted", n)
	}
}

// TestImposedCalls: under a restriction a member may read, and do nothing else, whatever the call.
func TestImposedCalls(t *testing.T) {
	e, _ := newRestricted(t, schemas{}, nil)
	reached := false
	h := e.Protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	call := func(path string, headers ...string) bool {
		reached = false
		req := httptest.NewRequestWithContext(principal.NewContext(t.Context(), principal.Principal{Kind: principal.Member, Name: "m"}), http.MethodPost, path, http.NoBody)
		for _, text := range headers {
			req.Header.Set(restrict.Header, text)
		}
		h.ServeHTTP(httptest.NewRecorder(), req)
		return reached
	}
	limit, err := restrict.ParseLimit("mask card")
	if err != nil {
		t.Fatal(err)
	}
	header, open := restrict.New(limit).Encode(), 0
	others := []string{"/v1/query", "/v1/tail/payments", "/v1/lines/payments", "/metrics", "/livez", "/arrow.flight.protocol.FlightService/DoGet", "/debug/pprof/heap", "/something"}
	for path, of := range procedures {
		if of.reads {
			if open++; !call(path, header) {
				t.Errorf("%s is refused", path)
			}
			continue
		}
		others = append(others, path)
	}
	for _, path := range others {
		if call(path, header) {
			t.Errorf("%s is open", path)
		}
		if !call(path) {
			t.Errorf("%s is refused to a member for itself", path)
		}
	}
	if open != 5 {
		t.Errorf("%d calls are open: what is its answer to a reader with limits?", open)
	}
}

// describedCategories answers GetCategory and ListCategories with one category.
type describedCategories struct {
	rpc.ControlService
	category *scribev1.Category
}

func (d describedCategories) GetCategory(context.Context, *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	return &scribev1.GetCategoryResponse{Category: d.category, Shards: []*scribev1.ShardStatus{{}}}, nil
}

func (d describedCategories) ListCategories(context.Context, *scribev1.ListCategoriesRequest) (*scribev1.ListCategoriesResponse, error) {
	return &scribev1.ListCategoriesResponse{Categories: []*scribev1.Category{d.category}}, nil
}

// TestSeenCategories: what somebody knows of a category follows from all rights to it, and what it reads with from those to read alone.
func TestSeenCategories(t *testing.T) {
	const limit = " where region = 'eu' hide card"
	c := categoryOf(t, "payments", paymentFields)
	c.FormerLayouts = []*scribev1.ShardLayout{{Field: "card"}}
	e, _ := newRestricted(t, schemas{"payments": c}, map[string]string{
		"reader": "read:payments" + limit, "writer": "write:payments; read:payments" + limit, "manager": "manage:payments; read:payments" + limit,
		"querier": "query:payments; read:payments" + limit, "limited": "read:payments; query:payments" + limit, "grouper": "group:payments", "gone": "read:payments hide iban",
		"writes": "write:payments; read:payments hide iban",
	})
	s := e.Services(rpc.Services{Control: describedCategories{category: c}}).Control
	member := restrict.NewContext(principal.NewContext(t.Context(), principal.Principal{Kind: principal.Member, Name: "m"}), limitsFor(e, "reader"))
	for name, want := range map[string]struct {
		ctx                    context.Context
		schema, layout         bool // as it is described
		readSchema, readLayout bool // as it is read
		querySchema            bool // as it is queried
	}{
		"reader":   {as("reader"), false, false, false, false, false},
		"writer":   {as("writer"), false, true, false, false, false},
		"manager":  {as("manager"), true, true, false, false, true},
		"querier":  {as("querier"), true, true, false, false, true},
		"limited":  {as("limited"), true, true, true, true, false},
		"grouper":  {as("grouper"), true, true, true, true, true},
		"admin":    {as("admin"), true, true, true, true, true},
		"a member": {member, false, false, false, false, false},
	} {
		knows := func(what string, c *scribev1.Category, schema, layout bool) {
			if got := strings.Contains(c.GetSchema(), "card"); got != schema {
				t.Errorf("%s, %s: the schema is %s", name, what, c.GetSchema())
			}
			if got := c.GetShardField() != "" && len(c.GetFormerLayouts()) == 1 && !c.GetLayoutsForgotten(); got != layout || !got && (c.GetShardField() != "" || len(c.GetFormerLayouts()) > 0 || !c.GetLayoutsForgotten()) {
				t.Errorf("%s, %s: the layout is %v of %q, forgotten %t", name, what, c.GetShardBy(), c.GetShardField(), c.GetLayoutsForgotten())
			}
		}
		for _, reading := range []bool{false, true} {
			res, err := s.GetCategory(want.ctx, &scribev1.GetCategoryRequest{Name: "payments", ForReading: reading})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if reading {
				knows("reading", res.GetCategory(), want.readSchema, want.readLayout)
			} else {
				knows("described", res.GetCategory(), want.schema, want.layout)
			}
		}
		list, err := s.ListCategories(want.ctx, &scribev1.ListCategoriesRequest{})
		if err != nil || len(list.GetCategories()) != 1 {
			t.Fatalf("%s: %v, %v", name, list, err)
		}
		knows("listed", list.GetCategories()[0], want.schema, want.layout)
		if got := strings.Contains(e.SeenAs(want.ctx, c).GetSchema(), "card"); got != want.querySchema {
			t.Errorf("%s, queried: %t", name, got)
		}
	}
	// A limit that can't be told: who may do something else as well is told so only where it reads.
	for name, reading := range map[string][]bool{"gone": {false, true}, "writes": {true}} {
		for _, reads := range []bool{false, true} {
			_, err := s.GetCategory(as(name), &scribev1.GetCategoryRequest{Name: "payments", ForReading: reads})
			if want := slices.Contains(reading, reads); want != (rpc.ReasonOf(err) == denied) || want && (strings.Contains(err.Error(), "iban") || strings.Contains(err.Error(), "card")) {
				t.Errorf("%s, reading %t: %v", name, reads, err)
			}
		}
	}
}
