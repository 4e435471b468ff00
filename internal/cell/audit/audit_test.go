package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/cell/audit"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

// trailStore is a cell that keeps what is published, or fails.
type trailStore struct {
	rpc.WriteService
	rpc.ControlService
	mu      sync.Mutex
	err     error
	schema  string
	entries []audit.Entry
	times   []time.Time
	// stored is the category that was created before, if there is one; refusal the answer to updates of it.
	stored  *scribev1.Category
	refusal error
	updates []*scribev1.UpdateCategoryRequest
}

func (s *trailStore) CreateCategory(_ context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !req.GetIfNotExists() || req.GetCategory().GetName() != audit.Category {
		return nil, errors.New("this is not how the trail's category is created")
	}
	s.schema = req.GetCategory().GetSchema()
	return &scribev1.CreateCategoryResponse{Category: s.stored}, nil
}

func (s *trailStore) UpdateCategory(_ context.Context, req *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates = append(s.updates, req)
	if s.refusal != nil {
		return nil, s.refusal
	}
	s.stored = &scribev1.Category{Name: req.GetName(), Schema: req.GetSchema(), Revision: req.GetRevision() + 1}
	return &scribev1.UpdateCategoryResponse{Category: s.stored}, nil
}

func (s *trailStore) Publish(_ context.Context, req *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return nil, s.err
	case req.GetCategory() != audit.Category || req.GetAck() != scribev1.AckLevel_ACK_LEVEL_COMMITTED || s.schema == "":
		return nil, errors.New("this is not how the trail is written")
	}
	for _, m := range req.GetMessages() {
		var e audit.Entry
		if err := json.Unmarshal(m.GetPayload(), &e); err != nil {
			return nil, err
		}
		s.entries, s.times = append(s.entries, e), append(s.times, time.UnixMicro(m.GetTime()))
	}
	return &scribev1.PublishResponse{}, nil
}

func (s *trailStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// take returns what was stored, and forgets it.
func (s *trailStore) take() []audit.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.entries
	s.entries = nil
	return got
}

// startTrail runs a trail in a bubble. end ends it, and waits until it has.
func startTrail(t *testing.T, s *trailStore) (trail *audit.Trail, end func()) {
	t.Helper()
	trail, err := audit.New(audit.Config{Now: time.Now, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		trail.Run(ctx, audit.Deps{Write: s, Control: s, Process: "n1"})
	}()
	return trail, func() { cancel(); <-ended }
}

// advance lets the bubble's time pass, and everybody do what there is to do.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

var ada = principal.Principal{Kind: principal.Client, Name: "ada", Token: "t1"}

func by(p principal.Principal) context.Context { return principal.NewContext(context.Background(), p) }

// TestTrail: what callers do is stored with who they are and when it was; what members do is not, since the caller is noted where it asked.
func TestTrail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{}
		trail, end := startTrail(t, s)
		began := time.Now()
		trail.Note(by(ada), audit.Entry{Action: "DeleteCategory", Target: "web", Outcome: audit.Done, Detail: strings.Repeat("x", 10_000)})
		trail.Note(by(principal.Principal{Kind: principal.Member, Name: "n2"}), audit.Entry{Action: "DeleteCategory"})
		advance(5 * time.Second)
		got := s.take()
		if len(got) != 1 {
			t.Fatalf("%d entries, want one: %+v", len(got), got)
		}
		e := got[0]
		if e.Process != "n1" || e.Action != "DeleteCategory" || e.Target != "web" || e.Outcome != audit.Done || e.Principal != "ada" || e.Kind != "client" || e.Token != "t1" || e.ID == "" {
			t.Errorf("stored as %+v", e)
		}
		if len(e.Detail) > 5000 || !strings.HasSuffix(e.Detail, "...") {
			t.Errorf("a request of 10,000 bytes is kept in %d", len(e.Detail))
		}
		if !s.times[0].Equal(began.Truncate(time.Microsecond)) {
			t.Errorf("it happened at %v, want %v", s.times[0], began)
		}
		trail.Note(by(ada), audit.Entry{Action: "last"})
		end()
		if got := s.take(); len(got) != 1 || got[0].Action != "last" {
			t.Errorf("a process that stops stores %+v, want its last entry", got)
		}
		var none *audit.Trail
		none.Note(by(ada), audit.Entry{}) // where nobody is asked who it is
	})
}

// TestTrailAway: while the trail can't be written its entries wait, in order, up to a bound; how many were left out is said.
func TestTrailAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{err: errors.New("no write proxy")}
		trail, end := startTrail(t, s)
		defer end()
		const noted, kept = 10_050, 10_000
		for i := range noted {
			trail.Note(by(ada), audit.Entry{Action: strconv.Itoa(i), Outcome: audit.Done})
		}
		advance(time.Minute)
		s.fail(nil)
		advance(time.Minute)
		got := s.take()
		if len(got) != kept+1 {
			t.Fatalf("%d entries are stored, want %d and one that says how many are missing", len(got), kept)
		}
		for i, e := range got[:kept] {
			if e.Action != strconv.Itoa(i) {
				t.Fatalf("entry %d is %q", i, e.Action)
			}
		}
		if last := got[kept]; last.Detail != strconv.Itoa(noted-kept) || last.Outcome != audit.Failed {
			t.Errorf("what is missing is told as %+v", last)
		}
	})
}

// TestManyDenials: somebody who tries everything does not fill the trail, and hides nothing that is done meanwhile.
func TestManyDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{}
		trail, end := startTrail(t, s)
		for range 5000 {
			trail.Note(by(ada), audit.Entry{Action: "read", Outcome: audit.Denied})
			trail.Note(context.Background(), audit.Entry{Action: "read", Outcome: audit.Failed})
		}
		trail.Note(by(ada), audit.Entry{Action: "create", Outcome: audit.Done})
		trail.Note(by(principal.Principal{Kind: principal.Client, Name: "bob"}), audit.Entry{Action: "read", Outcome: audit.Failed})
		end()
		var denied, done, left, others int
		for _, e := range s.take() {
			switch {
			case e.Principal == "bob":
				others++
			case e.Action == "read":
				denied++
			case e.Action == "create":
				done++
			default:
				left, _ = strconv.Atoi(e.Detail)
			}
		}
		if denied == 0 || denied > 200 || done != 1 || others != 1 || denied+left != 10_000 {
			t.Errorf("%d vain attempts are noted and %d counted of 10,000, and %d of one that was done, %d of another caller's", denied, left, done, others)
		}
	})
}

// TestHugeNames: what comes from outside is cut, so that nobody fills the memory or makes a batch that no category takes.
func TestHugeNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{}
		trail, end := startTrail(t, s)
		huge := strings.Repeat("<", 8<<20)
		for range 50 {
			trail.Note(by(ada), audit.Entry{Action: huge, Target: huge, Outcome: audit.Failed, Reason: huge, Detail: huge})
		}
		end()
		got := s.take()
		if len(got) != 50 {
			t.Fatalf("%d entries, want 50", len(got))
		}
		if e := got[0]; len(e.Action)+len(e.Target)+len(e.Reason)+len(e.Detail) > 6000 || !strings.HasPrefix(e.Target, "<<<") {
			t.Errorf("%d, %d, %d and %d bytes of texts of 8 MiB are kept", len(e.Action), len(e.Target), len(e.Reason), len(e.Detail))
		}
		trail.Note(by(ada), audit.Entry{Action: "late", Outcome: audit.Done}) // is counted as dropped
	})
}

// TestTrailRefused: a batch that the category refuses for good makes room for later ones.
func TestTrailRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{err: rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "at most 100 bytes")}
		trail, end := startTrail(t, s)
		trail.Note(by(ada), audit.Entry{Action: "first", Outcome: audit.Done})
		advance(10 * time.Second)
		s.fail(nil)
		trail.Note(by(ada), audit.Entry{Action: "second", Outcome: audit.Done})
		end()
		if got := s.take(); len(got) != 1 || got[0].Action != "second" {
			t.Errorf("stored is %+v, want the second entry", got)
		}
	})
}

// TestOlderMembers: while a member does not know the category it is not created, and nothing is lost.
func TestOlderMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &trailStore{}
		trail, err := audit.New(audit.Config{Now: time.Now, Registerer: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		var upgraded atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			trail.Run(ctx, audit.Deps{Write: s, Control: s, Process: "n1", Ready: func(context.Context) (bool, error) { return upgraded.Load(), nil }})
		}()
		trail.Note(by(ada), audit.Entry{Action: "early", Outcome: audit.Done})
		advance(time.Minute)
		if got := s.take(); len(got) > 0 || s.schema != "" {
			t.Errorf("stored is %+v beside a member that does not know the category", got)
		}
		upgraded.Store(true)
		advance(time.Minute)
		if got := s.take(); len(got) != 1 {
			t.Errorf("stored is %+v, want the early entry", got)
		}
		cancel()
		<-ended
	})
}

// TestInterceptor: calls that change something are noted with their outcome and what they are about; others are not.
func TestInterceptor(t *testing.T) {
	create := connect.NewRequest(&scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "web"}})
	for name, c := range map[string]struct {
		procedure string
		req       connect.AnyRequest
		err       error
		want      []audit.Entry
	}{
		"done": {
			scribev1connect.ControlServiceCreateCategoryProcedure, create, nil,
			[]audit.Entry{{Action: "CreateCategory", Target: "web", Outcome: audit.Done, Detail: `"name":"web"`}},
		},
		"failed": {
			scribev1connect.ControlServiceCreateCategoryProcedure, create, rpc.Errorf(scribev1.Reason_REASON_CATEGORY_EXISTS, "there is one"),
			[]audit.Entry{{Action: "CreateCategory", Target: "web", Outcome: audit.Failed, Reason: "category_exists", Detail: `"name":"web"`}},
		},
		"a bug": {
			scribev1connect.ControlServiceCreateCategoryProcedure, create, connect.NewError(connect.CodeInternal, errors.New("oh")),
			[]audit.Entry{{Action: "CreateCategory", Target: "web", Outcome: audit.Failed, Reason: "internal", Detail: `"name":"web"`}},
		},
		"denied": {scribev1connect.ControlServiceCreateCategoryProcedure, create, rpc.Errorf(scribev1.Reason_REASON_DENIED, "no rule"), nil},
		"a group": {
			scribev1connect.GroupServiceResetGroupProcedure, connect.NewRequest(&scribev1.ResetGroupRequest{Group: "billing"}), nil,
			[]audit.Entry{{Action: "ResetGroup", Target: "billing", Outcome: audit.Done, Detail: `"group":"billing"`}},
		},
		"a grant": {
			scribev1connect.AccessServiceAddGrantsProcedure, connect.NewRequest(&scribev1.AddGrantsRequest{Principal: "bob", Rules: []string{"read:web"}}), nil,
			[]audit.Entry{{Action: "AddGrants", Target: "bob", Outcome: audit.Done, Detail: "read:web"}},
		},
		"a look": {scribev1connect.ControlServiceGetCategoryProcedure, connect.NewRequest(&scribev1.GetCategoryRequest{Name: "web"}), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &trailStore{}
				trail, end := startTrail(t, s)
				next := trail.Interceptor().WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { return nil, c.err })
				if _, err := next(by(ada), calledAs{c.req, c.procedure}); !errors.Is(err, c.err) {
					t.Errorf("the caller gets %v, want %v", err, c.err)
				}
				end()
				got := s.take()
				if len(got) != len(c.want) {
					t.Fatalf("%d entries, want %d: %+v", len(got), len(c.want), got)
				}
				for i, want := range c.want {
					e := got[i]
					if e.Action != want.Action || e.Target != want.Target || e.Outcome != want.Outcome || e.Reason != want.Reason ||
						!strings.Contains(strings.ReplaceAll(e.Detail, " ", ""), want.Detail) {
						t.Errorf("noted as %+v, want %+v", e, want)
					}
				}
			})
		})
	}
}

// calledAs is a request to a procedure.
type calledAs struct {
	connect.AnyRequest
	procedure string
}

func (c calledAs) Spec() connect.Spec { return connect.Spec{Procedure: c.procedure} }
