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
	// keyLifetime is for how long a key is used before the store is asked whether it still exists. While the store answers, a deleted key is used no longer than that.
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
	cfg    Config
	ctx    context.Context //nolint:containedctx // loads outlive the calls that begin them
	cancel context.CancelFunc
	loads  sync.WaitGroup

	mu struct {
		sync.Mutex
		closed bool
		// keys are by name. The id of those for new blocks is 0.
		keys *simplelru.LRU[keyName, *keyEntry]
	}
}

// keyEntry holds the last answer about a key. Keys.mu guards it.
type keyEntry struct {
	key *Key // the last one that was read, nil if there is none
	err error
	at  time.Time // of the last answer
	// loading is closed when the running load ends; nil without one.
	loading chan struct{}
	failing logthrottle.Throttle
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
	name := keyName{category: category, generation: generation}
	e := k.entryOf(name)
	if k.isDue(e) {
		k.startLoad(name, e)
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
			k.startLoad(name, e)
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
func (k *Keys) startLoad(name keyName, e *keyEntry) {
	if k.mu.closed {
		e.err, e.at = context.Canceled, k.cfg.Clock()
		return
	}
	e.loading = make(chan struct{})
	before := uint64(0)
	if e.key != nil {
		before = e.key.name.id
	}
	k.loads.Go(func() {
		ctx, cancel := context.WithTimeout(k.ctx, loadTimeout)
		defer cancel()
		key, err := k.loadKey(ctx, name, before)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.logOutcome(name, e, key, err)
		if err == nil {
			e.key = key
		}
		e.err, e.at = err, k.cfg.Clock()
		close(e.loading)
		e.loading = nil
	})
}

// logOutcome logs what operators should know of a load. The mutex is held.
func (k *Keys) logOutcome(name keyName, e *keyEntry, key *Key, err error) {
	attrs := []any{slog.Any("category", name.category), slog.Any("generation", name.generation)}
	switch {
	case err == nil && e.key != nil && e.key.name != key.name:
		k.cfg.Logger.Error("the key of an encrypted category is gone from the store, and so is what it encrypted: new payloads take another one",
			append(attrs, slog.String("gone", fmt.Sprintf("%016x", e.key.name.id)), slog.String("new", fmt.Sprintf("%016x", key.name.id)))...)
	case err == nil:
		e.failing.Recovered(k.ctx, k.cfg.Logger, "the key of an encrypted category is there again", attrs...)
	case k.ctx.Err() == nil:
		e.failing.Failed(k.ctx, k.cfg.Logger, "failed to get the key of an encrypted category", append(attrs, slog.Any("error", err))...)
	}
}

// loadKey reads a key. Without an id that is the one for new blocks, which is made if there is none; before is that of the id that was used so far.
func (k *Keys) loadKey(ctx context.Context, name keyName, before uint64) (_ *Key, err error) {
	if name.id == 0 {
		if name, err = chooseKey(ctx, k.cfg.Store, k.cfg.Wrapper, name, before, k.cfg.Random); err != nil {
			return nil, err
		}
	}
	o, err := findObject(ctx, k.cfg.Store, name)
	if err != nil {
		return nil, err
	}
	secret, err := unwrapObject(ctx, k.cfg.Wrapper, o)
	if err != nil {
		return nil, err
	}
	return newKey(name, secret, k.cfg.Random)
}

func unwrapObject(ctx context.Context, w Wrapper, o *keyObject) ([]byte, error) {
	secret, err := w.Unwrap(ctx, o.wrapper, o.wrapped, o.label())
	if err != nil {
		return nil, fmt.Errorf("unwrap %v: %w", o.name, err)
	}
	return secret, nil
}
