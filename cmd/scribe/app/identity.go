package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"scribe/internal/base/backoff"
	"scribe/storage/blob"
)

// incarnationHeader names the start of a process in answers of /livez.
const incarnationHeader = "Scribe-Incarnation"

// serveLivez says that the process is alive, and which start of it this is.
func (a *App) serveLivez(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set(incarnationHeader, a.incarnation)
	_, _ = fmt.Fprintln(w, "ok") // the prober may have closed the connection
}

// probeProcess asks who serves at a URL.
func (a *App) probeProcess(ctx context.Context, url string) (incarnation string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/livez", http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := a.transport.HTTPClient().Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	if _, err = io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10)); err != nil { // so that the connection can be used again
		return "", err
	}
	// A proxy or another program at the address says nothing of who holds the id.
	if incarnation = res.Header.Get(incarnationHeader); res.StatusCode != http.StatusOK || incarnation == "" {
		return "", fmt.Errorf("%s answers %s, and not as a process of a cell", url, res.Status)
	}
	return incarnation, nil
}

// storeIdentity is what the process knows of the identity of its store of payloads.
type storeIdentity struct {
	known    atomic.Pointer[string]
	admitted atomic.Bool
}

// identity returns the identity; "" while it is not known.
func (s *storeIdentity) identity() string {
	if known := s.known.Load(); known != nil {
		return *known
	}
	return ""
}

// noteAdmitted notes the identity with which the cell has admitted the process.
func (s *storeIdentity) noteAdmitted(identity string) {
	if identity != "" {
		s.admitted.Store(true)
	}
}

// identityTimeout bounds an attempt to learn the identity of the store; the start waits for one.
const identityTimeout = 5 * time.Second

// learnIdentity learns the identity of the store of payloads. A store that does not answer is asked again while the process runs: heartbeats tell the cell later.
// One that forbids the question is used as it is.
func (a *App) learnIdentity(ctx context.Context) error {
	random := a.opts.Host.Random.Named("store identity")
	learn := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, identityTimeout)
		defer cancel()
		identity, err := blob.Identify(ctx, a.parts.blobs, random.Text)
		if err == nil {
			a.store.known.Store(&identity)
		}
		return err
	}
	err := learn(ctx)
	switch {
	case err == nil, errors.Is(err, blob.ErrIdentity):
		return err
	case errors.Is(err, blob.ErrDenied):
		a.useUnchecked(err)
		return nil
	}
	a.log.Warn("the identity of the store of payloads is not known yet: nothing is put there before", "error", err)
	life, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pauses := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second, Random: random}
		for failures := 1; err != nil; failures++ {
			switch {
			case errors.Is(err, blob.ErrDenied):
				a.useUnchecked(err)
				return
			case errors.Is(err, blob.ErrIdentity):
				select {
				case a.failed <- fmt.Errorf("store of payloads: %w", err):
				default: // the first failure is the one that ends the process
				}
				return
			}
			if backoff.Sleep(life, pauses.Pause(failures)) != nil {
				return
			}
			err = learn(life)
		}
		a.log.Info("the identity of the store of payloads is known", "store", a.store.identity())
	}()
	a.onStop("store identity", func(context.Context) error { cancel(); <-ended; return nil })
	return nil
}

// useUnchecked lets payloads be put into a store that forbids the question for its identity.
func (a *App) useUnchecked(err error) {
	a.log.Warn("it can't be checked that the store of payloads is the cell's: permit reading and writing of its identity", "key", blob.IdentityKey, "error", err)
	a.store.admitted.Store(true)
}

// admittedStore is the store of payloads as the batcher uses it: nothing is put before the cell has admitted the process with this store. A blob in another store than the
// cell's would be lost.
type admittedStore struct {
	blob.Store
	identity *storeIdentity
}

var errNotAdmitted = errors.New("the cell has not confirmed yet that this is its store of payloads")

// Put implements blob.Store.
func (s admittedStore) Put(ctx context.Context, key string, parts ...[]byte) error {
	if !s.identity.admitted.Load() {
		return fmt.Errorf("put %s: %w: %w", key, blob.ErrUnavailable, errNotAdmitted)
	}
	return s.Store.Put(ctx, key, parts...)
}
