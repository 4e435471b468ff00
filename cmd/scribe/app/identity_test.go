package app

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scribe/storage/blob"
	"scribe/storage/blob/memory"
)

// refusedCell is a cell of one process, to which others are added.
type refusedCell struct {
	t     *testing.T
	dir   string
	first *App
}

func newRefusedCell(t *testing.T) *refusedCell {
	c := &refusedCell{t: t, dir: t.TempDir()}
	c.first = c.mustStart("first", func(cfg *Config) { cfg.Roles = []Role{ControlPlane, Metalog} })
	return c
}

// startOther starts a process in a folder of its own.
func (c *refusedCell) startOther(folder string, change func(*Config)) (*App, error) {
	c.t.Helper()
	return start(c.t, Direct, func(cfg *Config) {
		cfg.Data, cfg.Blobs.Path, cfg.LeaseTTL = filepath.Join(c.dir, folder), filepath.Join(c.dir, "blobs"), time.Minute
		if c.first != nil {
			cfg.Control, cfg.Metalog = c.first.URL(), c.first.URL()
		}
		change(cfg)
	})
}

func (c *refusedCell) mustStart(folder string, change func(*Config)) *App {
	c.t.Helper()
	a, err := c.startOther(folder, change)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { stopNow(c.t, a) })
	return a
}

// wantEnd fails unless err says all of texts.
func wantEnd(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("the error %v does not say %q", err, text)
		}
	}
}

// TestRefusedProcess: a process with another one's id, or another store than the cell's, ends with an error that says what to do, whether it needs a writer slot or not. The one
// that was there first does not notice.
func TestRefusedProcess(t *testing.T) {
	c := newRefusedCell(t)
	holder := c.mustStart("holder", func(cfg *Config) { cfg.ID, cfg.Roles = "twice", []Role{Batcher} })
	slot := holder.slot.Load()
	for _, role := range []Role{Batcher, ReadProxy} {
		_, err := c.startOther("other "+string(role), func(cfg *Config) { cfg.ID, cfg.Roles = "twice", []Role{role} })
		wantEnd(t, err, "join the cell", `"twice"`, holder.URL(), "--id")
		_, err = c.startOther("elsewhere "+string(role), func(cfg *Config) {
			cfg.Roles, cfg.Blobs.Path = []Role{role}, filepath.Join(c.dir, "other blobs")
		})
		wantEnd(t, err, "join the cell", "store of payloads", "--blob-path", holder.store.identity())
	}
	if holder.slot.Load() != slot || !holder.ready.Load() {
		t.Errorf("the holder has slot %d in place of %d", holder.slot.Load(), slot)
	}
	select {
	case err := <-holder.Failed():
		t.Error(err)
	default:
	}
	// It comes back at once at another address.
	stopNow(t, holder)
	if again := c.mustStart("holder", func(cfg *Config) { cfg.ID, cfg.Roles = "twice", []Role{Batcher} }); again.slot.Load() != slot {
		t.Errorf("it comes back to slot %d in place of %d", again.slot.Load(), slot)
	}
}

// TestFoundOutLater: a process whose store answers only after it has joined puts nothing before the cell has admitted it with that store, and ends if it is another one's.
func TestFoundOutLater(t *testing.T) {
	c := newRefusedCell(t)
	c.mustStart("holder", func(cfg *Config) { cfg.Roles = []Role{Batcher} })
	store := &sleepingStore{Store: memory.New(), awake: make(chan struct{})}
	cfg := DefaultConfig()
	cfg.Data, cfg.Listen, cfg.Roles, cfg.LeaseTTL = filepath.Join(c.dir, "late"), "127.0.0.1:0", []Role{Batcher}, time.Second
	cfg.Control, cfg.Metalog = c.first.URL(), c.first.URL()
	a, err := Start(t.Context(), cfg, Options{
		Logger: c.first.log, Version: "test", Host: Host{OpenBlobs: func(context.Context, Config) (blob.Store, error) { return store, nil }},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, a)
	if err := (admittedStore{a.parts.blobs, &a.store}).Put(t.Context(), "blobs/1h/1", []byte("x")); !errors.Is(err, blob.ErrUnavailable) || !errors.Is(err, errNotAdmitted) {
		t.Errorf("before the cell knows its store, a put ends with %v", err)
	}
	close(store.awake)
	select {
	case err := <-a.Failed():
		wantEnd(t, err, "refuses this process", "store of payloads")
	case <-time.After(time.Minute):
		t.Error("a process with another cell's store goes on")
	}
	if _, err := store.Store.Stat(t.Context(), "blobs/1h/1"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("it has put a blob: %v", err)
	}
}

// sleepingStore is not available until it is awake.
type sleepingStore struct {
	*memory.Store
	awake chan struct{}
}

func (s *sleepingStore) Stat(ctx context.Context, key string) (blob.Info, error) {
	select {
	case <-s.awake:
		return s.Store.Stat(ctx, key)
	default:
		return blob.Info{}, blob.ErrUnavailable
	}
}

// TestStoreThatForbids: a store that does not let the process read or write the identity is used without it; one whose identity is damaged is not.
func TestStoreThatForbids(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{{"forbidden", blob.ErrDenied, ""}, {"damaged", blob.ErrIdentity, "identity"}} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Data, cfg.Listen = t.TempDir(), "127.0.0.1:0"
			store := &forbiddingStore{memory.New(), c.err}
			a, err := Start(t.Context(), cfg, Options{Logger: slog.New(slog.DiscardHandler), Version: "test", Host: Host{OpenBlobs: func(context.Context, Config) (blob.Store, error) { return store, nil }}})
			if c.want != "" {
				wantEnd(t, err, c.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer stopNow(t, a)
			if err := (admittedStore{a.parts.blobs, &a.store}).Put(t.Context(), "blobs/1h/1", []byte("x")); err != nil {
				t.Error(err)
			}
		})
	}
}

// forbiddingStore answers questions for the identity with an error.
type forbiddingStore struct {
	*memory.Store
	err error
}

func (s *forbiddingStore) Stat(ctx context.Context, key string) (blob.Info, error) {
	if key == blob.IdentityKey {
		return blob.Info{}, s.err
	}
	return s.Store.Stat(ctx, key)
}

// TestProbe: who asks an address learns which start of a process serves there.
func TestProbe(t *testing.T) {
	a, err := start(t, Direct, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, a)
	if got, err := a.probeProcess(t.Context(), a.URL()); err != nil || got == "" || got != a.incarnation {
		t.Errorf("%q serves, %v, and not %q", got, err, a.incarnation)
	}
	b, err := start(t, Direct, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, b)
	if a.incarnation == b.incarnation {
		t.Error("two starts have one name")
	}
}
