package enforce

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"scribe/internal/base/entropy"
	"scribe/internal/cell/access"
	"scribe/internal/format/delivery"
	"scribe/internal/role/publish"
	"scribe/internal/role/request"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// rights are who may do what in a test.
type rights struct {
	mu      sync.Mutex
	set     *access.Set
	unknown bool
	next    chan struct{}
}

func (r *rights) Set() *access.Set { set, _ := r.Watch(); return set }
func (r *rights) Known() bool      { return !r.unknown }
func (r *rights) Watch() (*access.Set, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set, r.next
}

// replace gives the cell another set.
func (r *rights) replace(set *access.Set) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set = set
	close(r.next)
	r.next = make(chan struct{})
}

// categories are the owners of categories; asked counts the names that were looked up at the control plane.
type categories struct {
	owners map[string]string // known here
	later  map[string]string // known to the control plane
	asked  []string
}

func (c *categories) Lookup(name string) (*scribev1.Category, bool) {
	owner, ok := c.owners[name]
	return &scribev1.Category{Name: name, Owner: owner}, ok
}

func (c *categories) Resolve(_ context.Context, name string) (*scribev1.Category, error) {
	c.asked = append(c.asked, name)
	if owner, ok := c.later[name]; ok {
		return &scribev1.Category{Name: name, Owner: owner}, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "it does not exist")
}

// newEnforcer returns an enforcer for grants, given as "principal rule rule".
func newEnforcer(t *testing.T, c *categories, grants ...string) (*Enforcer, *rights) {
	t.Helper()
	records := map[string][]byte{}
	for _, g := range grants {
		words := strings.Fields(g)
		rules, err := access.ParseRules(words[1:], true)
		if err != nil {
			t.Fatal(err)
		}
		records[access.GrantKey(words[0])] = encode(t, &scribev1.AccessGrant{Principal: words[0], Rules: rules})
	}
	if len(grants) > 0 {
		records[access.KeyKey(1)] = encode(t, &scribev1.TicketKey{Id: 1, Secret: make([]byte, access.KeyBytes), CreatedAt: 1})
	}
	set, damaged := access.NewSet(records)
	if len(damaged) > 0 {
		t.Fatal(damaged)
	}
	r := &rights{set: set, next: make(chan struct{})}
	e, err := New(Deps{Rights: r})
	if err != nil {
		t.Fatal(err)
	}
	if c != nil {
		e.SetCategories(c)
	}
	return e, r
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := access.EncodeRecord(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// as returns a context of a client; "" is for nobody.
func as(name string) context.Context {
	if name == "" {
		return context.Background()
	}
	return principal.NewContext(context.Background(), principal.Principal{Kind: principal.Client, Name: name})
}

func wantReason(t *testing.T, err error, want scribev1.Reason) {
	t.Helper()
	if rpc.ReasonOf(err) != want {
		t.Errorf("%v: %v, want %v", err, rpc.ReasonOf(err), want)
	}
}

const (
	denied          = scribev1.Reason_REASON_DENIED
	unauthenticated = scribev1.Reason_REASON_UNAUTHENTICATED
)

// TestEveryProcedureIsClassified: a new call is refused to all but members until somebody decides.
func TestEveryProcedureIsClassified(t *testing.T) {
	found := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("scribe.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				path := "/" + string(s.FullName()) + "/" + string(s.Methods().Get(j).Name())
				found++
				if _, ok := procedures[path]; !ok {
					t.Errorf("%s is not in the table", path)
				}
			}
		}
		return true
	})
	if found != len(procedures) {
		t.Errorf("the table has %d procedures, the protocol %d", len(procedures), found)
	}
}

func TestAdmission(t *testing.T) {
	e, r := newEnforcer(t, nil, "writer write:a.*", "reader read:b", "ops operate:*", "eye monitor:*", "root all:*")
	open := func(path, who string) bool { return e.admitCall(as(who), path) == nil }
	const (
		write   = "/scribe.v1.WriteService/Write"
		stream  = "/scribe.v1.ReadStreamService/Stream"
		submit  = "/scribe.v1.BatchService/Submit"
		status  = "/scribe.v1.ControlService/GetStatus"
		join    = "/scribe.v1.ControlService/Join"
		issue   = "/scribe.v1.AccessService/IssueToken"
		records = "/scribe.v1.AccessService/WatchAccess"
		all     = "writer reader ops eye root"
		health  = "/scribe.v1.ProcessService/GetHealth"
		nodes   = "/scribe.v1.NodeService/ListNodes"
		remove  = "/scribe.v1.NodeService/RemoveNode"
		views   = "/scribe.v1.ViewService/Views"
	)
	for path, allowed := range map[string]string{
		write: "writer reader root", stream: "reader root", submit: "", status: all, health: "ops eye root", nodes: "ops eye root", remove: "ops root", views: "ops root", join: "", issue: "ops root", records: "",
		"/livez": all, "/readyz": all, "/metrics": "ops eye root", "/debug/pprof/profile": "ops root", "/metricsx": "",
		"/v1/query": "root", "/v1/status": all, "/v1/traffic": "ops eye root", "/v1/tail/b": "reader root", "/v1/tail": "", "/v1/lines/a.x": "writer root", "/": all, "/console/app.js": all, "/nothing": "", "/v1/lines": "", "/scribe.v1.WriteService/Other": "",
	} {
		for _, who := range []string{"", "writer", "reader", "ops", "eye", "root", "stranger"} {
			want := slices.Contains(strings.Fields(allowed), who)
			if path == "/livez" || path == "/readyz" || path == "/" || path == "/console/app.js" {
				want = true
			}
			if open(path, who) != want {
				t.Errorf("%s by %q: %v, want %v", path, who, !want, want)
			}
		}
		if !open(path, "root") && e.admitCall(principal.NewContext(t.Context(), principal.Principal{Kind: principal.Member}), path) != nil {
			t.Errorf("%s is closed to members", path)
		}
	}
	wantReason(t, e.admitCall(as(""), write), unauthenticated)
	wantReason(t, e.admitCall(as("stranger"), write), denied)
	r.unknown = true
	wantReason(t, e.admitCall(as("stranger"), write), scribev1.Reason_REASON_NO_BACKEND)
	openCell, _ := newEnforcer(t, nil)
	if err := openCell.admitCall(as(""), submit); err != nil {
		t.Errorf("an open cell: %v", err)
	}
}

// TestClosingEndsWatches: what only members may watch ends for strangers as soon as the cell is closed, and for them alone.
func TestClosingEndsWatches(t *testing.T) {
	e, r := newEnforcer(t, nil)
	closed, _ := newEnforcer(t, nil, "root all:*")
	began, ended := make(chan struct{}), make(chan error, 2)
	h := e.Protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	}))
	watch := func(p principal.Principal) context.CancelFunc {
		ctx, cancel := context.WithCancel(principal.NewContext(t.Context(), p))
		go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/scribe.v1.AccessService/WatchAccess", http.NoBody))
		<-began
		return cancel
	}
	leave := watch(principal.Principal{Kind: principal.Member})
	defer watch(principal.Principal{})()
	r.replace(closed.rights.Set())
	wantReason(t, <-ended, unauthenticated)
	select {
	case err := <-ended:
		t.Errorf("the member's watch has ended, too: %v", err)
	default:
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestProtect: tokens are read from the header, and a wrong one is refused also where the connection has proved something.
func TestProtect(t *testing.T) {
	e, _ := newEnforcer(t, nil, "root all:*")
	var who principal.Principal
	h := e.Protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { who = principal.FromContext(r.Context()) }))
	call := func(path, authorization string, p principal.Principal) int {
		who = principal.Principal{}
		r := httptest.NewRequestWithContext(principal.NewContext(t.Context(), p), http.MethodPost, path, http.NoBody)
		r.Header.Set("Authorization", authorization)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	root := principal.Principal{Kind: principal.Client, Name: "root"}
	for _, c := range []struct {
		path, authorization string
		p                   principal.Principal
		want                int
		kind                principal.Kind
	}{
		{"/metrics", "Bearer " + e.OwnToken(), principal.Principal{}, 200, principal.Member},
		{"/metrics", "bearer " + e.OwnToken(), principal.Principal{}, 200, principal.Member},
		{"/metrics", "", root, 200, principal.Client},
		{"/metrics", "Digest x", root, 200, principal.Client},
		{"/metrics", "Basic " + base64.StdEncoding.EncodeToString([]byte("any:"+e.OwnToken())), principal.Principal{}, 200, principal.Member},
		{"/metrics", "Basic eDp5", root, 401, 0},
		{"/metrics", "", principal.Principal{}, 401, 0},
		{"/metrics", "Bearer scribe_x", root, 401, 0},
		{"/metrics", "", principal.Principal{Kind: principal.Client, Name: "x"}, 403, 0},
		{"/livez", "Bearer wrong", principal.Principal{}, 200, 0},
		{"/scribe.v1.ControlService/Join", "", root, 403, 0},
		{"/scribe.v1.ControlService/Join", "Bearer " + e.OwnToken(), root, 200, principal.Member},
	} {
		if got := call(c.path, c.authorization, c.p); got != c.want || who.Kind != c.kind {
			t.Errorf("%s with %q by %v: %d by %v, want %d by %v", c.path, c.authorization, c.p, got, who.Kind, c.want, c.kind)
		}
	}
}

// TestOwners: a category that is not known here is looked up only for who may have a right by its owner.
func TestOwners(t *testing.T) {
	c := &categories{owners: map[string]string{"known": "team"}, later: map[string]string{"fresh": "team", "foreign": "other"}}
	e, _ := newEnforcer(t, c, "owner write:owner=team", "named write:x.*")
	for _, name := range []string{"known", "fresh"} {
		if err := e.Allow(as("owner"), access.Write, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	same := e.Allow(as("owner"), access.Write, "foreign").Error()
	if missing := e.Allow(as("owner"), access.Write, "missing").Error(); strings.ReplaceAll(missing, "missing", "foreign") != same {
		t.Errorf("what exists is told by %q and %q", same, missing)
	}
	if want := []string{"fresh", "foreign", "missing"}; !slices.Equal(c.asked, want) {
		t.Errorf("asked for %q, want %q", c.asked, want)
	}
	c.asked = nil
	for _, name := range []string{"fresh", "foreign", "missing"} {
		wantReason(t, e.Allow(as("named"), access.Write, name), denied)
		wantReason(t, e.Allow(as("owner"), access.Read, name), denied)
		wantReason(t, e.Allow(as(""), access.Write, name), unauthenticated)
	}
	if len(c.asked) > 0 {
		t.Errorf("asked for %q of callers without a right", c.asked)
	}
}

// writer takes all frames, and notes their categories and the request.
type writer struct {
	rpc.WriteService
	req  *scribev1.WriteRequest
	seen []string
}

func (w *writer) Write(_ context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	w.req = req
	res := &scribev1.WriteResponse{Ordered: true}
	for frames := request.WalkHeaders(req.GetFrames()); frames.Next(); {
		w.seen = append(w.seen, frames.CategoryName())
		res.Results = append(res.Results, &scribev1.FrameResult{Lsn: uint64(len(w.seen))})
	}
	return res, nil
}

func frameOf(t *testing.T, category string) []byte {
	t.Helper()
	f, err := publish.Frame(&scribev1.PublishRequest{
		Category: category, Messages: []*scribev1.PublishMessage{{Content: &scribev1.PublishMessage_Text{Text: "m"}}},
	}, publish.MaxBytes, time.UnixMicro(1))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestWrite(t *testing.T) {
	e, _ := newEnforcer(t, nil, "alice write:a.*", "root write:*")
	inner := &writer{}
	s := e.Services(rpc.Services{Write: inner}).Write
	mixed := &scribev1.WriteRequest{Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED, Follows: []uint32{1, 3, 4}, Lingered: true}
	for _, category := range []string{"b", "a.x", "b", "a.x", "a.y", "c"} {
		mixed.Frames = append(mixed.Frames, frameOf(t, category)...)
	}
	res, err := s.Write(as("alice"), mixed)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a.x", "a.x", "a.y"}; !slices.Equal(inner.seen, want) || !slices.Equal(inner.req.GetFollows(), []uint32{0, 1, 2}) || !inner.req.GetLingered() {
		t.Errorf("written %q, follows %v", inner.seen, inner.req.GetFollows())
	}
	for i, want := range []uint64{0, 1, 0, 2, 3, 0} {
		r := res.GetResults()[i]
		if r.GetLsn() != want || (want == 0) != (r.GetError().GetReason() == denied) {
			t.Errorf("frame %d: %v, want LSN %d", i, r, want)
		}
	}
	for who, reason := range map[string]scribev1.Reason{"bob": denied, "": unauthenticated} {
		inner.seen = nil
		_, err := s.Write(as(who), mixed)
		wantReason(t, err, reason)
		if len(inner.seen) > 0 {
			t.Errorf("%q wrote %q", who, inner.seen)
		}
	}
	// Nothing of a request is copied unless something is denied.
	for who, category := range map[string]string{"alice": "a.x", "root": "b"} {
		req := &scribev1.WriteRequest{Frames: frameOf(t, category)}
		if _, err := s.Write(as(who), req); err != nil || inner.req != req {
			t.Errorf("%s: %v, another request: %v", who, err, inner.req != req)
		}
	}
	if _, err := s.Publish(as("alice"), &scribev1.PublishRequest{Category: "b"}); rpc.ReasonOf(err) != denied {
		t.Errorf("publish: %v", err)
	}
}

// TestDeliveryCounts: who may write to a category may count its deliveries, and no other's, whatever it may write to the category of the counts.
func TestDeliveryCounts(t *testing.T) {
	e, _ := newEnforcer(t, nil, "alice write:a.*", "dora write:_delivery", "rita read:b", "root write:*")
	inner := &writer{}
	s := e.Services(rpc.Services{Write: inner}).Write
	l := delivery.NewLedger(delivery.Agent, "h", "a", entropy.NewSeeded(1, "rows"))
	given := delivery.NewLedger(delivery.Reader, "h", "", entropy.NewSeeded(2, "rows"))
	for _, category := range []string{"a.x", "a.y", "b"} {
		l.Add(delivery.Key{Category: category, Producer: 7, Minute: 1}, delivery.Counts{Produced: 1})
	}
	given.Add(delivery.Key{Category: "b", Minute: 1, Reader: "billing"}, delivery.Counts{Delivered: 1})
	var frames [][]byte
	for _, p := range slices.Concat(l.Reports(time.UnixMicro(1), nil), given.Reports(time.UnixMicro(1), nil)) {
		frames = append(frames, p.Frame)
	}
	req := &scribev1.WriteRequest{Frames: slices.Concat(frames...)}
	for who, want := range map[string][]scribev1.Reason{
		"alice": {0, 0, denied, denied}, "dora": nil, "root": {0, 0, 0, 0}, "bob": nil, "rita": {denied, denied, denied, 0},
	} {
		inner.seen = nil
		res, err := s.Write(as(who), req)
		if want == nil {
			wantReason(t, err, denied)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", who, err)
			continue
		}
		for i, r := range res.GetResults() {
			if r.GetError().GetReason() != want[i] {
				t.Errorf("%s: frame %d: %v", who, i, r)
			}
		}
	}
	// What is not a row of counts may be about anything.
	for name, frame := range map[string][]byte{"no row": frameOf(t, delivery.Category), "damaged": slices.Concat(frames[0][:len(frames[0])-1], []byte{0})} {
		_, err := s.Write(as("alice"), &scribev1.WriteRequest{Frames: frame})
		wantReason(t, err, scribev1.Reason_REASON_INVALID)
		if err == nil {
			t.Errorf("%s was written", name)
		}
	}
}

// fixedIssuer proves one principal by one token.
type fixedIssuer struct {
	text   string
	proved principal.Principal
	err    error
}

func (i *fixedIssuer) Verify(_ context.Context, text string, _ [sha256.Size]byte) (principal.Principal, error) {
	if text != i.text {
		return principal.Principal{}, i.err
	}
	return i.proved, nil
}

// TestIssuedStream: a stream of a caller with a token of an issuer ends with it, at its time. Its end tells the reader to open another one, with another token, and is no denial.
func TestIssuedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEnforcer(t, nil, "oidc:ada read:web")
		e.issuer = &fixedIssuer{text: "a.b.c", proved: principal.Principal{Kind: principal.Client, Name: "oidc:ada", Issued: &principal.Issued{Expires: time.Now().Add(time.Hour)}}}
		ctx, err := e.WithCaller(t.Context(), "Bearer a.b.c")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		err = readStreamService{endless{}, e}.Stream(ctx, startOf("web"), func(*scribev1.StreamResponse) error { return nil })
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || !strings.Contains(rpc.Message(err), "open it again") {
			t.Errorf("it ends with %v", err)
		}
		if after := time.Since(begun); after < time.Hour || after > time.Hour+time.Second {
			t.Errorf("it ends after %v", after)
		}
		if n := testutil.ToFloat64(e.denials.WithLabelValues(string(access.Expired))); n != 0 {
			t.Errorf("%v denials", n)
		}
		err = readStreamService{endless{}, e}.Stream(ctx, startOf("web"), func(*scribev1.StreamResponse) error { return nil })
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_UNAUTHENTICATED {
			t.Errorf("another one with the same token: %v", err)
		}
	})
}

// TestWithdrawnKey: a stream ends at once when the issuer withdraws the key of its token, before anything more is sent.
func TestWithdrawnKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEnforcer(t, nil, "oidc:ada read:web")
		withdrawn := make(chan struct{})
		e.issuer = &fixedIssuer{text: "a.b.c", proved: principal.Principal{
			Kind: principal.Client, Name: "oidc:ada", Issued: &principal.Issued{Expires: time.Now().Add(time.Hour), Withdrawn: withdrawn},
		}}
		ctx, err := e.WithCaller(t.Context(), "Bearer a.b.c")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		time.AfterFunc(time.Second, func() { close(withdrawn) })
		err = readStreamService{endless{}, e}.Stream(ctx, startOf("web"), func(*scribev1.StreamResponse) error { return nil })
		if after := time.Since(begun); after != time.Second || rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
			t.Errorf("it ends after %v with %v", after, err)
		}
	})
}

// TestIssuerInOpenCell: while nobody has granted anything, whom a token of the issuer names may do no more than the connection proves.
func TestIssuerInOpenCell(t *testing.T) {
	e, r := newEnforcer(t, nil)
	e.issuer = &fixedIssuer{text: "a.b.c", proved: principal.Principal{Kind: principal.Client, Name: "oidc:ada", Issued: &principal.Issued{Expires: time.Now().Add(time.Hour)}}}
	for _, of := range []principal.Principal{{}, {Kind: principal.Client, Name: "alice"}} {
		ctx, err := e.WithCaller(principal.NewContext(t.Context(), of), "Bearer a.b.c")
		if p := principal.FromContext(ctx); err != nil || p != of {
			t.Errorf("%v with a token: %v, %v", of, p, err)
		}
	}
	closed, _ := newEnforcer(t, nil, "root all:*")
	r.replace(closed.rights.Set())
	ctx, err := e.WithCaller(t.Context(), "Bearer a.b.c")
	if p := principal.FromContext(ctx); err != nil || p.Name != "oidc:ada" {
		t.Errorf("in a closed cell: %v, %v", p, err)
	}
}

// endless is a read stream that goes on until its context ends.
type endless struct{ rpc.ReadStreamService }

func (endless) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), _ func(*scribev1.StreamResponse) error) error {
	if _, err := recv(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func startOf(category string) func(context.Context) (*scribev1.StreamRequest, error) {
	return func(context.Context) (*scribev1.StreamRequest, error) {
		return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{Category: category}}}, nil
	}
}

// TestIssuedDenials: what is wrong with a token of an issuer is said to who has it, and counted by its cause; what nobody knows now is tried again, and why it is not known
// is not for who has proved nothing.
func TestIssuedDenials(t *testing.T) {
	e, _ := newEnforcer(t, nil, "oidc:ada read:web")
	for cause, want := range map[access.Cause]scribev1.Reason{
		access.WrongAudience: scribev1.Reason_REASON_UNAUTHENTICATED, access.Expired: scribev1.Reason_REASON_UNAUTHENTICATED, access.NotKnown: scribev1.Reason_REASON_NO_BACKEND,
	} {
		e.issuer = &fixedIssuer{err: &access.TokenError{Cause: cause, Err: errors.New("it is so and so")}}
		_, err := e.WithCaller(t.Context(), "Bearer a.b.c")
		if rpc.ReasonOf(err) != want || strings.Contains(rpc.Message(err), "it is so and so") == (cause == access.NotKnown) {
			t.Errorf("%s: %v", cause, err)
		}
		if n := testutil.ToFloat64(e.denials.WithLabelValues(string(cause))); n != 1 {
			t.Errorf("%s: %v denials", cause, n)
		}
	}
	if _, err := e.WithCaller(t.Context(), "Bearer scribe_b.c.d"); rpc.ReasonOf(err) != scribev1.Reason_REASON_UNAUTHENTICATED || strings.Contains(rpc.Message(err), "so and so") {
		t.Errorf("a token that looks like one of the cell: %v", err)
	}
	e.issuer = nil
	if _, err := e.WithCaller(t.Context(), "Bearer a.b.c"); rpc.ReasonOf(err) != scribev1.Reason_REASON_UNAUTHENTICATED {
		t.Errorf("without an issuer: %v", err)
	}
}

// checkedAccess answers checks with what it was asked.
type checkedAccess struct {
	rpc.AccessService
	asked *scribev1.CheckAccessRequest
}

func (c *checkedAccess) CheckAccess(_ context.Context, req *scribev1.CheckAccessRequest) (*scribev1.CheckAccessResponse, error) {
	c.asked = req
	return &scribev1.CheckAccessResponse{Allowed: true}, nil
}

// TestCheckText: the text of a token goes no further than the process that is asked; the control plane is asked about whom it proves.
func TestCheckText(t *testing.T) {
	e, _ := newEnforcer(t, nil, "oidc:ada read:web")
	end := time.Now().Add(time.Hour).Truncate(time.Second)
	e.issuer = &fixedIssuer{
		text: "a.b.c", proved: principal.Principal{Kind: principal.Client, Name: "oidc:ada", Issued: &principal.Issued{Roles: []string{"role:oidc:web"}, Expires: end}},
		err: &access.TokenError{Cause: access.WrongAudience, Err: errors.New("it is for another")},
	}
	checked := new(checkedAccess)
	service := e.Services(rpc.Services{Access: checked}).Access
	res, err := service.CheckAccess(t.Context(), &scribev1.CheckAccessRequest{Text: "a.b.c", Permission: "read", Category: "web"})
	if err != nil || !res.GetAllowed() || res.GetPrincipal() != "oidc:ada" || !slices.Equal(res.GetRoles(), []string{"role:oidc:web"}) || res.GetExpiresAt() != end.UnixMicro() {
		t.Errorf("%v, %v", res, err)
	}
	if q := checked.asked; q.GetText() != "" || q.GetPrincipal() != "oidc:ada" || !slices.Equal(q.GetRoles(), []string{"role:oidc:web"}) || q.GetCategory() != "web" {
		t.Errorf("asked %v", q)
	}
	checked.asked = nil
	res, err = service.CheckAccess(t.Context(), &scribev1.CheckAccessRequest{Text: "a.b.d", Permission: "read"})
	if err != nil || res.GetAllowed() || !strings.Contains(res.GetReason(), "it is for another") || checked.asked != nil {
		t.Errorf("%v, %v", res, err)
	}
	if _, err = service.CheckAccess(t.Context(), &scribev1.CheckAccessRequest{Text: "a.b.c", Principal: "x"}); rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
		t.Error(err)
	}
}
