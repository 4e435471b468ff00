package access

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"scribe/internal/transport/principal"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a control plane: a watch sends what the test sends, and fails with fail.
type source struct {
	messages chan *scribev1.WatchAccessResponse
	fail     error
}

func (s *source) WatchAccess(ctx context.Context, _ *scribev1.WatchAccessRequest, send func(*scribev1.WatchAccessResponse) error) error {
	if s.fail != nil {
		return s.fail
	}
	for {
		select {
		case m := <-s.messages:
			if err := send(m); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func newView(t *testing.T, fsys vfs.FS, s RecordSource, log io.Writer) *View {
	t.Helper()
	cfg := DefaultViewConfig()
	if fsys != nil {
		cfg.File, cfg.FS = "access", fsys
	}
	v, err := NewView(cfg, ViewDeps{Source: s, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// run keeps a view current until the test ends.
func run(t *testing.T, v *View) (stop func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- v.Run(context.Background()) }()
	return func() {
		if err := errors.Join(v.Close(context.Background()), <-done); err != nil {
			t.Error(err)
		}
	}
}

func complete(records map[string][]byte) *scribev1.WatchAccessResponse {
	m := &scribev1.WatchAccessResponse{Reset_: true, Synced: true, Revision: 1}
	for key, value := range records {
		m.Updated = append(m.Updated, &scribev1.AccessRecord{Key: key, Value: value})
	}
	return m
}

// mayRead says whether a principal may read the category a.
func mayRead(v *View, name string) Cause {
	return v.Set().Decide(client(name), Read, "a", "", noon)
}

// TestHeartbeatBeforeTheSet: until the whole set has arrived nothing is known, and everything is denied to all but members.
func TestHeartbeatBeforeTheSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{messages: make(chan *scribev1.WatchAccessResponse)}
		v := newView(t, nil, s, io.Discard)
		defer run(t, v)()
		first := complete(recordsOf(t, "alice read:a"))
		first.Synced = false
		for _, m := range []*scribev1.WatchAccessResponse{{}, {Revision: 5}, first, {Revision: 6}} {
			s.messages <- m
			synctest.Wait()
			if v.Known() || !v.Set().Closed() || mayRead(v, "alice") == Allowed || v.Set().Decide(principal.Principal{Kind: principal.Member}, Write, "a", "", noon) != Allowed {
				t.Fatalf("after %v: known %v", m, v.Known())
			}
			select {
			case <-v.Ready():
				t.Fatal("ready")
			default:
			}
		}
		s.messages <- &scribev1.WatchAccessResponse{Synced: true, Revision: 7}
		<-v.Ready()
		if !v.Known() || mayRead(v, "alice") != Allowed {
			t.Error("the set is complete, and not known")
		}
	})
}

// TestViewFollows: changes count as soon as they arrive, and wake those that wait.
func TestViewFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{messages: make(chan *scribev1.WatchAccessResponse)}
		var log bytes.Buffer
		v := newView(t, nil, s, &log)
		defer run(t, v)()
		s.messages <- complete(recordsOf(t, "alice read:a", "bob read:a"))
		<-v.Ready()
		_, replaced := v.Watch()
		s.messages <- &scribev1.WatchAccessResponse{Updated: []*scribev1.AccessRecord{{Key: GrantKey("alice"), Value: []byte{0xff}}}, Deleted: []string{GrantKey("bob")}}
		<-replaced
		synctest.Wait()
		if mayRead(v, "alice") != Damaged || mayRead(v, "bob") != NoRule || !strings.Contains(log.String(), "damaged record") {
			t.Errorf("alice %q, bob %q, log %s", mayRead(v, "alice"), mayRead(v, "bob"), log.String())
		}
	})
}

// TestClosedForGood: a control plane without records, whose store may be lost, does not open a cell that was closed.
func TestClosedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := vfs.NewMem()
		s := &source{messages: make(chan *scribev1.WatchAccessResponse)}
		v := newView(t, fsys, s, io.Discard)
		stop := run(t, v)
		s.messages <- complete(recordsOf(t, "alice read:a"))
		<-v.Ready()
		s.messages <- complete(nil)
		synctest.Wait()
		if !v.Set().Closed() || mayRead(v, "alice") != NoRule {
			t.Error("the cell is open")
		}
		stop()
		// The next process reads that from the file.
		v = newView(t, fsys, s, io.Discard)
		defer run(t, v)()
		s.messages <- complete(nil)
		synctest.Wait()
		if !v.Known() || !v.Set().Closed() {
			t.Error("the cell is open after a restart")
		}
	})
}

// TestLastGoodCopy: a process that starts while the control plane is away decides as the last one did.
func TestLastGoodCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := vfs.NewMem()
		s := &source{messages: make(chan *scribev1.WatchAccessResponse)}
		v := newView(t, fsys, s, io.Discard)
		stop := run(t, v)
		s.messages <- complete(recordsOf(t, "alice read:a"))
		<-v.Ready()
		stop()
		v = newView(t, fsys, &source{fail: errors.New("away")}, io.Discard)
		defer run(t, v)()
		<-v.Ready()
		if mayRead(v, "alice") != Allowed || mayRead(v, "bob") != NoRule {
			t.Error("the copy does not count")
		}
	})
}

// TestOlderControlPlane: one that does not know of access leaves the cell open, unless it is known to be closed.
func TestOlderControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older := &source{fail: connect.NewError(connect.CodeUnimplemented, errors.New("no such service"))}
		v := newView(t, nil, older, io.Discard)
		stop := run(t, v)
		<-v.Ready()
		if v.Set().Closed() {
			t.Error("the cell is closed")
		}
		stop()
		closed := newView(t, nil, older, io.Discard)
		closed.mu.Lock()
		closed.replaceRecords(recordsOf(t, "alice read:a"))
		closed.mu.Unlock()
		defer run(t, closed)()
		<-time.After(time.Minute)
		if !closed.Set().Closed() || mayRead(closed, "alice") != Allowed {
			t.Error("the cell was opened")
		}
	})
}

func TestFile(t *testing.T) {
	records := recordsOf(t, "alice read:a", "role:web write:b")
	records["grant/damaged"] = []byte{0xff}
	whole, err := encodeFile(records, true, 42)
	if err != nil {
		t.Fatal(err)
	}
	got, closed, at, err := decodeFile(whole)
	if err != nil || !closed || at != 42 || !maps.EqualFunc(got, records, bytes.Equal) {
		t.Fatalf("%v, closed %v, saved at %d, %v", got, closed, at, err)
	}
	for i := range whole {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 0x10
		if _, _, _, err := decodeFile(damaged); !errors.Is(err, errFile) {
			t.Fatalf("byte %d of a file may be anything: %v", i, err)
		}
		if _, _, _, err := decodeFile(whole[:i]); !errors.Is(err, errFile) {
			t.Fatalf("%d bytes of a file: %v", i, err)
		}
	}
}

func FuzzRecords(f *testing.F) {
	key, value := grantOf(f, "alice", "read:a")
	f.Add(key, value)
	records := map[string][]byte{}
	addToken(f, records, "alice", nil, "read:a")
	keyRecord(f, records, 1)
	for key, value := range records {
		f.Add(key, value)
	}
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		s, damaged := NewSet(map[string][]byte{key: value})
		if !s.Closed() {
			t.Error("a record leaves a cell open")
		}
		if len(damaged) > 0 && (s.Damaged() > 1 || s.HasAdministrator(noon)) {
			t.Error("a damaged record gives rights")
		}
		if after, _ := s.Apply(nil, []string{key}); after.Damaged() != 0 || after.Rules() != 0 || after.Tokens() != 0 {
			t.Error("something is left of a record")
		}
	})
}

func FuzzFile(f *testing.F) {
	whole, _ := encodeFile(map[string][]byte{"grant/a": {1}}, true, 1)
	f.Add(whole)
	f.Fuzz(func(t *testing.T, b []byte) {
		records, closed, at, err := decodeFile(b)
		if err != nil {
			return
		}
		again, err := encodeFile(records, closed, at)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := decodeFile(again); err != nil {
			t.Error(err)
		}
	})
}
