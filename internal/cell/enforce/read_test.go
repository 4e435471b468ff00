package enforce

import (
	"context"
	"testing"
	"time"

	"scribe/internal/cell/access"
	"scribe/internal/format/pointer"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func pointerOf(offset, length uint32) []byte {
	return pointer.Append(nil, &pointer.Pointer{
		Blob: pointer.BlobID{6: 0x70, 8: 0x80}, Class: 72, Codec: pointer.CodecNone, BlockOffset: 128, BlockLen: 5000, BlockRawLen: 5000, Offset: offset, Length: length, Frames: 1, Messages: 1,
	})
}

// streams sends one pointer, and then waits for the end.
type streams struct{ rpc.ReadStreamService }

func (streams) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	if _, err := recv(ctx); err != nil {
		return err
	}
	entry := &scribev1.StreamEntry{Shard: 1 << 32, Lsn: 7, Pointer: pointerOf(100, 10)}
	if err := send(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Entries{Entries: &scribev1.StreamEntries{Entries: []*scribev1.StreamEntry{entry}}}}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (streams) Bounds(context.Context, *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error) {
	return &scribev1.BoundsResponse{}, nil
}

// openStream opens a stream, and returns its first entry and where its end will be.
func openStream(ctx context.Context, s rpc.ReadStreamService, start *scribev1.StreamStart) (entry *scribev1.StreamEntry, ended chan error) {
	entries, ended := make(chan *scribev1.StreamEntry, 1), make(chan error, 1)
	go func() {
		ended <- s.Stream(ctx, func(context.Context) (*scribev1.StreamRequest, error) {
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}, nil
		}, func(res *scribev1.StreamResponse) error {
			entries <- res.GetEntries().GetEntries()[0]
			return nil
		})
	}()
	select {
	case entry = <-entries:
	case err := <-ended:
		ended <- err
	}
	return entry, ended
}

func TestStreams(t *testing.T) {
	e, r := newEnforcer(t, nil, "alice read:a", "bob write:a")
	s := e.Services(rpc.Services{ReadStream: streams{}}).ReadStream
	for who, want := range map[string]scribev1.Reason{"bob": denied, "": unauthenticated} {
		entry, ended := openStream(as(who), s, &scribev1.StreamStart{Category: "a"})
		if entry != nil {
			t.Errorf("%q got %v", who, entry)
		}
		wantReason(t, <-ended, want)
		_, err := s.Bounds(as(who), &scribev1.BoundsRequest{Category: "a"})
		wantReason(t, err, want)
	}
	_, ended := openStream(as("alice"), s, &scribev1.StreamStart{Category: "a", Unsequenced: true})
	wantReason(t, <-ended, denied)
	entry, ended := openStream(as("alice"), s, &scribev1.StreamStart{Category: "a"})
	if at, cause := r.set.CheckTicket(entry.GetTicket(), principal.FromContext(as("alice")), "a", entry.GetPointer(), nil, e.now()); cause != access.Allowed || at.LSN != 7 {
		t.Errorf("the ticket of an entry: %v, %q", at, cause)
	}
	// The end of a right ends the stream, also one that brings nothing.
	without, _ := r.set.Apply(nil, []string{access.GrantKey("alice")})
	r.replace(without)
	wantReason(t, <-ended, denied)

	open, _ := newEnforcer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	entry, ended = openStream(ctx, open.Services(rpc.Services{ReadStream: streams{}}).ReadStream, &scribev1.StreamStart{Category: "a"})
	if entry == nil || entry.GetTicket() != nil {
		t.Errorf("an open cell: %v", entry)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Logf("the stream has ended: %v", err)
	}
}

// payloads answers every fetch, and counts them.
type payloads struct{ served int }

func (p *payloads) Fetch(context.Context, *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	p.served++
	return &scribev1.FetchResponse{}, nil
}

func TestFetch(t *testing.T) {
	e, r := newEnforcer(t, nil, "alice read:a", "bob read:a read:b", "all read:*")
	inner := &payloads{}
	s := e.Services(rpc.Services{ReadProxy: inner}).ReadProxy
	mine := pointerOf(100, 10)
	place := access.Place{Shard: 1 << 32, LSN: 7}
	ticketOf := func(who, category string, encoded []byte) []byte {
		return r.set.SignTicket(principal.FromContext(as(who)), category, place, encoded, access.Limits{}, e.now())
	}
	request := func(change func(*scribev1.FetchRequest)) *scribev1.FetchRequest {
		req := &scribev1.FetchRequest{Category: "a", Pointers: [][]byte{mine}, Tickets: [][]byte{ticketOf("alice", "a", mine)}}
		if change != nil {
			change(req)
		}
		return req
	}
	for name, c := range map[string]struct {
		who  string
		req  *scribev1.FetchRequest
		want scribev1.Reason
	}{
		"as it was sent": {"alice", request(nil), 0},
		"at its place": {"alice", request(func(r *scribev1.FetchRequest) {
			r.Places = []*scribev1.PointerPlace{{Shard: place.Shard, Lsn: place.LSN}}
		}), 0},
		"at another place": {"alice", request(func(r *scribev1.FetchRequest) {
			r.Places = []*scribev1.PointerPlace{{Shard: place.Shard, Lsn: 8}}
		}), denied},
		"in another category's place": {"alice", request(func(r *scribev1.FetchRequest) {
			r.Places = []*scribev1.PointerPlace{{Shard: 2 << 32, Lsn: place.LSN}}
		}), denied},
		"without a ticket":           {"alice", request(func(r *scribev1.FetchRequest) { r.Tickets = nil }), denied},
		"with too few":               {"alice", request(func(r *scribev1.FetchRequest) { r.Pointers = append(r.Pointers, pointerOf(0, 5000)) }), denied},
		"with too many":              {"alice", request(func(r *scribev1.FetchRequest) { r.Tickets = append(r.Tickets, r.Tickets[0]) }), denied},
		"a whole block":              {"alice", request(func(r *scribev1.FetchRequest) { r.Pointers[0] = pointerOf(0, 5000) }), denied},
		"a neighbour":                {"alice", request(func(r *scribev1.FetchRequest) { r.Pointers[0] = pointerOf(90, 10) }), denied},
		"as a block":                 {"alice", request(func(r *scribev1.FetchRequest) { r.Encoding = scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK }), denied},
		"as a peer":                  {"alice", request(func(r *scribev1.FetchRequest) { r.Peer = true }), denied},
		"of another reader":          {"bob", request(nil), denied},
		"of another category":        {"bob", request(func(r *scribev1.FetchRequest) { r.Category = "b" }), denied},
		"without the right":          {"alice", request(func(r *scribev1.FetchRequest) { r.Category = "b"; r.Tickets[0] = ticketOf("alice", "b", mine) }), denied},
		"by nobody":                  {"", request(nil), unauthenticated},
		"who reads everything":       {"all", request(func(r *scribev1.FetchRequest) { r.Tickets = nil }), 0},
		"who reads it, as a block":   {"all", request(func(r *scribev1.FetchRequest) { r.Encoding = scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK }), denied},
		"who reads it, somewhere":    {"all", request(func(r *scribev1.FetchRequest) { r.Tickets = nil; r.Places = []*scribev1.PointerPlace{{Shard: 2 << 32}} }), denied},
		"who reads it, by another's": {"all", request(nil), denied},
	} {
		before := inner.served
		_, err := s.Fetch(as(c.who), c.req)
		wantReason(t, err, c.want)
		if (inner.served > before) != (c.want == 0) {
			t.Errorf("%s: served %v", name, inner.served > before)
		}
	}
	// A right that has ended ends what its tickets open.
	r.set, _ = r.set.Apply(nil, []string{access.GrantKey("alice")})
	_, err := s.Fetch(as("alice"), request(nil))
	wantReason(t, err, denied)
}

// TestFetchWithOtherToken: a reader whose token is replaced while its stream goes on fetches what the stream has brought, also if the new token makes it an operator. Nobody
// with another name does.
func TestFetchWithOtherToken(t *testing.T) {
	records := map[string][]byte{access.KeyKey(1): encode(t, &scribev1.TicketKey{Id: 1, Secret: make([]byte, access.KeyBytes), CreatedAt: 1})}
	rules, err := access.ParseRules([]string{"read:a"}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"alice", "oidc:ada"} {
		records[access.GrantKey(name)] = encode(t, &scribev1.AccessGrant{Principal: name, Rules: rules})
	}
	token := func(name string, revoked int64, rules ...string) string {
		id, _, hash := access.NewToken(nil)
		records[access.TokenKey(id)] = encode(t, &scribev1.AccessToken{Id: id, Principal: name, Hash: hash, Rules: rules, IssuedAt: 1, RevokedAt: revoked})
		return id
	}
	former, next, foreign := token("alice", 2), token("alice", 0), token("bob", 0, rules...)
	set, damaged := access.NewSet(records)
	if len(damaged) > 0 {
		t.Fatal(damaged)
	}
	e, r := newEnforcer(t, nil, "root all:*")
	r.replace(set)
	issued := &principal.Issued{Expires: time.Now().Add(time.Hour)}
	mine := [][]byte{pointerOf(100, 10), pointerOf(200, 10)}
	for name, c := range map[string]struct {
		of, by principal.Principal
		want   scribev1.Reason
	}{
		"its next token":         {principal.Principal{Kind: principal.Client, Name: "alice", Token: former}, principal.Principal{Kind: principal.Client, Name: "alice", Token: next}, 0},
		"a token as an operator": {principal.Principal{Kind: principal.Client, Name: "oidc:ada", Issued: issued}, principal.Principal{Kind: principal.Operator, Name: "oidc:ada", Issued: issued}, 0},
		"another's token":        {principal.Principal{Kind: principal.Client, Name: "alice", Token: next}, principal.Principal{Kind: principal.Client, Name: "bob", Token: foreign}, denied},
		"the former token":       {principal.Principal{Kind: principal.Client, Name: "alice", Token: next}, principal.Principal{Kind: principal.Client, Name: "alice", Token: former}, unauthenticated},
	} {
		req := &scribev1.FetchRequest{Category: "a", Pointers: mine}
		for _, p := range mine {
			req.Tickets = append(req.Tickets, set.SignTicket(c.of, "a", access.Place{}, p, access.Limits{}, e.now()))
		}
		_, err := readProxyService{new(payloads), e}.Fetch(principal.NewContext(t.Context(), c.by), req)
		if rpc.ReasonOf(err) != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
