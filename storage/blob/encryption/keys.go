package encryption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"scribe/internal/base/entropy"
	"scribe/internal/base/logthrottle"
	"scribe/storage/blob"
)

// Config is what [NewKeys] needs.
type Config struct {
	// Store has the keys, beside the blobs that are encrypted with them.
	Store blob.Store
	// Wrapper wraps and unwraps them; nil is [NoWrapper].
	Wrapper Wrapper
	// Logger gets messages for operators; nil discards them.
	Logger *slog.Logger
	// Clock is the time; nil is the machine's.
	Clock func() time.Time
	// Random draws keys and nonces; nil is the machine's randomness.
	Random *entropy.Source
}

const (
	// keyLifetime is for how long a key is used before the store is asked whether it still exists. A deleted key is used no longer than that.
	keyLifetime = time.Hour
	// retryPause is for how long an error is repeated without a question to the store.
	retryPause = time.Second
	// loadTimeout bounds a question to store and wrapper.
	loadTimeout = 30 * time.Second
	// maxKeys bounds the keys in memory, at some 2 KiB each.
	maxKeys = 16384
)

// ErrLoading means that a key is on its way: ask again in a moment.
var ErrLoading = errors.New("encryption: the key is being fetched")

// Keys has the keys of a store in memory. It is safe for concurrent use.
type Keys struct {
	cfg     Config
	ctx     context.Context //nolint:containedctx // loads outlive the calls that begin them
	cancel  context.CancelFunc
	loads   sync.WaitGroup
	failing logthrottle.Throttle

	mu struct {
		sync.Mutex
		closed bool
		keys   *simplelru.LRU[keyName, *keyEntry]
	}
}

// keyEntry is what is known of a key. Keys.mu guards it.
type keyEntry struct {
	key *Key // the last one that was read, nil if there is none
	err error
	at  time.Time // of the last answer
	// loading is closed when the running load ends; nil without one.
	loading chan struct{}
}

// NewKeys returns the keys of a store.
func NewKeys(cfg Config) (*Keys, error) {
	if cfg.Store == nil {
		return nil, errors.New("encryption: Config.Store is needed")
	}
	if cfg.Wrapper == nil {
		cfg.Wrapper = NoWrapper{}
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	k := &Keys{cfg: cfg}
	var err error
	if k.mu.keys, err = simplelru.NewLRU[keyName, *keyEntry](maxKeys, nil); err != nil {
		return nil, fmt.Errorf("encryption: %w", err)
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k, nil
}

// Close ends the running questions to the store, and waits for them.
func (k *Keys) Close() {
	k.mu.Lock()
	k.mu.closed = true
	k.mu.Unlock()
	k.cancel()
	k.loads.Wait()
}

// WritingKey returns the key for new blocks, and makes it if the store has none. It never waits: the error matches [ErrLoading] while the key
// is on its way, else it says why there is none.
func (k *Keys) WritingKey(category, generation uint32) (*Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := keyName{category, generation}
	e := k.entryOf(name)
	if k.isDue(e) {
		k.startLoad(name, e, true)
	}
	switch {
	case e.key != nil && !errors.Is(e.err, ErrNoKey):
		return e.key, nil
	case e.err != nil:
		return nil, e.err
	default:
		return nil, fmt.Errorf("%w: %v", ErrLoading, name)
	}
}

// readingKey returns a key, and waits for it. A key that was read before is used on while the store does not answer.
func (k *Keys) readingKey(ctx context.Context, name keyName) (*Key, error) {
	for {
		k.mu.Lock()
		e := k.entryOf(name)
		if k.isDue(e) {
			k.startLoad(name, e, false)
		}
		key, err, loading := e.key, e.err, e.loading
		k.mu.Unlock()
		switch {
		case key != nil && !errors.Is(err, ErrNoKey):
			return key, nil
		case loading == nil:
			return nil, err
		}
		select {
		case <-loading:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// entryOf returns the entry of a key. The mutex is held.
func (k *Keys) entryOf(name keyName) *keyEntry {
	e, ok := k.mu.keys.Get(name)
	if !ok {
		e = &keyEntry{}
		k.mu.keys.Add(name, e)
	}
	return e
}

// isDue reports whether the store is to be asked for a key. The mutex is held.
func (k *Keys) isDue(e *keyEntry) bool {
	age := k.cfg.Clock().Sub(e.at)
	return e.loading == nil && (e.key == nil && e.err == nil || e.err != nil && age >= retryPause || age >= keyLifetime)
}

// startLoad asks the store for a key. The mutex is held.
func (k *Keys) startLoad(name keyName, e *keyEntry, create bool) {
	if k.mu.closed {
		e.err, e.at = context.Canceled, k.cfg.Clock()
		return
	}
	e.loading = make(chan struct{})
	k.loads.Go(func() {
		ctx, cancel := context.WithTimeout(k.ctx, loadTimeout)
		defer cancel()
		key, err := k.loadKey(ctx, name, create)
		k.logOutcome(name, err)
		k.mu.Lock()
		defer k.mu.Unlock()
		if err == nil {
			e.key = key
		}
		e.err, e.at = err, k.cfg.Clock()
		close(e.loading)
		e.loading = nil
	})
}

func (k *Keys) logOutcome(name keyName, err error) {
	switch {
	case err == nil:
		k.failing.Recovered(k.ctx, k.cfg.Logger, "keys of encrypted categories can be read again")
	case k.ctx.Err() == nil:
		k.failing.Failed(k.ctx, k.cfg.Logger, "failed to get the key of an encrypted category", slog.Any("category", name.category),
			slog.Any("generation", name.generation), slog.Any("error", err))
	}
}

// loadKey reads a key, and makes it if there is none and create is set.
func (k *Keys) loadKey(ctx context.Context, name keyName, create bool) (*Key, error) {
	o, err := findObject(ctx, k.cfg.Store, name)
	if create && errors.Is(err, ErrNoKey) {
		if err := makeObject(ctx, k.cfg.Store, k.cfg.Wrapper, name, k.cfg.Random); err != nil {
			return nil, err
		}
		o, err = findObject(ctx, k.cfg.Store, name)
	}
	if err != nil {
		return nil, err
	}
	secret, err := unwrapObject(ctx, k.cfg.Wrapper, o)
	if err != nil {
		return nil, err
	}
	return newKey(name, o.id, secret, k.cfg.Random)
}

func unwrapObject(ctx context.Context, w Wrapper, o *keyObject) ([]byte, error) {
	secret, err := w.Unwrap(ctx, o.wrapper, o.wrapped, o.label())
	if err != nil {
		return nil, fmt.Errorf("unwrap %v: %w", o.name, err)
	}
	return secret, nil
}
