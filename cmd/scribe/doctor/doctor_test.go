package doctor

import (
	"context"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
)

// wellMachine is a machine on which everything is in order, and a configuration for it.
func wellMachine(t *testing.T) (app.Config, Machine) {
	t.Helper()
	c := app.DefaultConfig()
	c.Data, c.Listen = filepath.Join(t.TempDir(), "data"), "127.0.0.1:0"
	return c, Machine{
		Version: "v1",
		Limits:  func() (Limits, error) { return Limits{Files: 1 << 20, Memory: 64 << 30}, nil },
		Space:   func(string) (available, total uint64, err error) { return 100 << 30, 200 << 30, nil },
		Host: app.Host{
			OpenBlobs: func(context.Context, app.Config) (blob.Store, error) { return memory.New(), nil },
			Now:       func() time.Time { return time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC) },
		},
	}
}

// found returns the results of a state, a line each.
func found(results []Result, state State) string {
	var lines []string
	for _, r := range results {
		if r.State == state {
			lines = append(lines, r.Check+": "+r.Found+" -> "+r.Advice)
		}
	}
	return strings.Join(lines, "\n")
}

// TestWell: on a machine in order every check is made and none complains; nothing is left behind.
func TestWell(t *testing.T) {
	c, m := wellMachine(t)
	results := Examine(t.Context(), c, m)
	if Worst(results) != OK {
		t.Errorf("warnings:\n%s\nfailures:\n%s", found(results, Warning), found(results, Failed))
	}
	text := found(results, OK)
	for _, check := range []string{"configuration: valid", "data folder: ", "data folder space: ", "spool folder: ", "address 127.0.0.1:0: free", "blob store: ", "clock: ", "open files: ", "memory: "} {
		if !strings.Contains(text, check) {
			t.Errorf("no check %q in\n%s", check, text)
		}
	}
	left, err := os.ReadDir(filepath.Dir(c.Data))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// brokenStore does one thing wrong.
type brokenStore struct {
	blob.Store
	overwrites, hides, keeps, denies bool
}

func (s *brokenStore) Put(ctx context.Context, key string, parts ...[]byte) error {
	switch {
	case s.denies:
		return blob.ErrDenied
	case s.overwrites:
		if _, err := s.Stat(ctx, key); err == nil {
			return nil
		}
	}
	return s.Store.Put(ctx, key, parts...)
}

func (s *brokenStore) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	if s.hides {
		return func(func(blob.Info, error) bool) {}
	}
	return s.Store.List(ctx, prefix)
}

func (s *brokenStore) Delete(ctx context.Context, key string) error {
	if s.keeps {
		return nil
	}
	return s.Store.Delete(ctx, key)
}

// TestBlobStores: what a store does not do is found, with advice that fits.
func TestBlobStores(t *testing.T) {
	for _, b := range []struct {
		store  *brokenStore
		err    error
		want   string
		advice string
	}{
		{&brokenStore{overwrites: true}, nil, "replaced the blob", "conditional puts"},
		{&brokenStore{hides: true}, nil, "not listed", "correct what the error names"},
		{&brokenStore{keeps: true}, nil, "still there", "correct what the error names"},
		{&brokenStore{denies: true}, nil, "put: ", "rights to put"},
		{nil, blob.ErrUnavailable, "can't be opened", "start the store"},
	} {
		c, m := wellMachine(t)
		m.Host.OpenBlobs = func(context.Context, app.Config) (blob.Store, error) {
			if b.store == nil {
				return nil, b.err
			}
			b.store.Store = memory.New()
			return b.store, nil
		}
		got := found(Examine(t.Context(), c, m), Failed)
		if !strings.HasPrefix(got, "blob store: ") || !strings.Contains(got, b.want) || !strings.Contains(got, b.advice) {
			t.Errorf("%+v: got %q, want %q and %q", b.store, got, b.want, b.advice)
		}
	}
}

// TestStoreIsLeftEmpty: what was put to try the store is gone afterwards.
func TestStoreIsLeftEmpty(t *testing.T) {
	store := memory.New()
	probe := &storeProbe{store: store, root: probeRoot + "x/"}
	if _, err := probe.tryStore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := probe.removeBlobs(t.Context()); err != nil {
		t.Fatal(err)
	}
	for info, err := range store.List(t.Context(), "") {
		t.Errorf("left: %v, %v", info, err)
	}
}

// TestMachines: what a machine lacks is found.
func TestMachines(t *testing.T) {
	occupied, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer occupied.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, b := range []struct {
		name  string
		spoil func(*app.Config, *Machine)
		state State
		want  string
	}{
		{"port", func(c *app.Config, _ *Machine) { c.Listen = occupied.Addr().String() }, Failed, "another process listens there -> stop"},
		{"foreign address", func(c *app.Config, _ *Machine) { c.Listen, c.Insecure = "192.0.2.1:7420", true }, Failed, "does not have that address"},
		{"folder that is a file", func(c *app.Config, _ *Machine) { c.Data = file }, Failed, "is not writable"},
		{"full disk", func(_ *app.Config, m *Machine) {
			m.Space = func(string) (uint64, uint64, error) { return 1 << 20, 1 << 40, nil }
		}, Failed, "data folder space: 1.0MiB of 1.0TiB free"},
		{"disk nearly full", func(_ *app.Config, m *Machine) {
			m.Space = func(string) (uint64, uint64, error) { return 3 << 30, 1 << 40, nil }
		}, Warning, "data folder space: 3.0GiB of 1.0TiB free"},
		{"few files", func(_ *app.Config, m *Machine) {
			m.Limits = func() (Limits, error) { return Limits{Files: 512, Memory: 64 << 30}, nil }
		}, Failed, "ulimit -n"},
		{"some files", func(_ *app.Config, m *Machine) {
			m.Limits = func() (Limits, error) { return Limits{Files: 4096, Memory: 64 << 30}, nil }
		}, Warning, "too few for many clients"},
		{"little memory", func(_ *app.Config, m *Machine) {
			m.Limits = func() (Limits, error) { return Limits{Files: 1 << 20, Memory: 256 << 20}, nil }
		}, Warning, "the machine has 256.0MiB"},
		{"clock", func(_ *app.Config, m *Machine) {
			m.Host.Now = func() time.Time { return time.Unix(0, 0) }
		}, Failed, "set the clock"},
		{"configuration", func(c *app.Config, _ *Machine) { c.Listen = "nowhere" }, Failed, "listen (--listen): invalid value"},
		{"socket", func(c *app.Config, _ *Machine) { c.Socket = file }, Failed, "not a socket"},
	} {
		t.Run(b.name, func(t *testing.T) {
			c, m := wellMachine(t)
			b.spoil(&c, &m)
			results := Examine(t.Context(), c, m)
			if got := found(results, b.state); !strings.Contains(got, b.want) || Worst(results) != b.state {
				t.Errorf("%s:\n%s\nwant %q", b.state, got, b.want)
			}
		})
	}
}

// otherProcess is a process of the cell with a version.
type otherProcess struct {
	rpc.ControlService
	version string
}

func (p otherProcess) GetStatus(context.Context, *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	return &scribev1.GetStatusResponse{Version: p.version}, nil
}

// TestServers: processes that are needed answer, in this version, with this time; or it is said.
func TestServers(t *testing.T) {
	answering := func(version string, at time.Time) string {
		mux := http.NewServeMux()
		(&rpc.Services{Control: otherProcess{version: version}}).Register(mux)
		mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Date", at.Format(http.TimeFormat)) })
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		return server.URL
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	c, m := wellMachine(t)
	now := m.Host.Now()
	for _, b := range []struct {
		url   string
		state State
		want  string
	}{
		{answering("v1", now), OK, "as other machines say"},
		{answering("v2", now), Warning, "it answers with version v2, this is v1"},
		{answering("v1", now.Add(-time.Minute)), Warning, "this clock is 1m0s ahead of that of"},
		{answering("v1", now.Add(time.Minute)), Warning, "this clock is 1m0s behind that of"},
		{gone.URL, Failed, "it does not answer"},
	} {
		c := c
		c.Roles, c.Upstream = []app.Role{app.Scribed}, b.url
		results := Examine(t.Context(), c, m)
		if got := found(results, b.state); !strings.Contains(got, b.want) || Worst(results) != b.state {
			t.Errorf("%s:\n%s\nwant %q; failed:\n%s", b.state, got, b.want, found(results, Failed))
		}
	}
}
