package linear_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/linear"
	"scribe/storage/metalog/pebblelog"
)

// engine opens an engine on a file system in memory.
func engine(t *testing.T, fs vfs.FS) *pebblelog.Engine {
	t.Helper()
	e, err := pebblelog.Open("log", pebblelog.Options{FS: fs, MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func closed(t *testing.T, e *pebblelog.Engine) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// lie is how a log lies. It is asked by chance, so often that each run has some.
type lie func(l *liar) linear.Log

// liar tells the truth but for what a lie replaces. now decides whether it is time to lie.
type liar struct {
	log linear.Log
	mu  sync.Mutex
	rng *rand.Rand
	// epochs are the newest ones of logs.
	epochs map[record.ShardID]uint64
	told   int
}

func (l *liar) now() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lie := l.rng.IntN(6) == 0
	if lie {
		l.told++
	}
	return lie
}

// patched is a log some of whose methods are others.
type patched struct {
	linear.Log
	open      func(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error)
	append    func(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error)
	read      func(ctx context.Context, shard record.ShardID, from record.LSN, n, bytes int) ([]metalog.Entry, error)
	tail      func(ctx context.Context, shards []record.ShardID) ([]metalog.State, error)
	subscribe func(updates []metalog.Update) []metalog.Update
	// promise returns what is sent after an update before the subscription ends; nil if it goes on.
	promise func(u *metalog.Update) *metalog.Update
	trim    func(ctx context.Context, shard record.ShardID, before record.LSN) error
}

func (p *patched) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	if p.open != nil {
		return p.open(ctx, owner, shards)
	}
	return p.Log.Open(ctx, owner, shards)
}

func (p *patched) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	if p.append != nil {
		return p.append(ctx, a)
	}
	return p.Log.Append(ctx, a)
}

func (p *patched) Read(ctx context.Context, shard record.ShardID, from record.LSN, n, bytes int) ([]metalog.Entry, error) {
	if p.read != nil {
		return p.read(ctx, shard, from, n, bytes)
	}
	return p.Log.Read(ctx, shard, from, n, bytes)
}

func (p *patched) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	if p.tail != nil {
		return p.tail(ctx, shards)
	}
	return p.Log.Tail(ctx, shards)
}

func (p *patched) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	if p.trim != nil {
		return p.trim(ctx, shard, before)
	}
	return p.Log.Trim(ctx, shard, before)
}

func (p *patched) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	return p.Log.Subscribe(ctx, from, heartbeat, func(updates []metalog.Update) error {
		if p.subscribe != nil {
			updates = p.subscribe(updates)
		}
		if err := fn(updates); err != nil || p.promise == nil {
			return err
		}
		if last := p.promise(&updates[len(updates)-1]); last != nil {
			return errors.Join(fn([]metalog.Update{*last}), errors.New("cut off"))
		}
		return nil
	})
}

// reads lies about what reads return.
func reads(change func(entries []metalog.Entry) []metalog.Entry) lie {
	return func(l *liar) linear.Log {
		return &patched{Log: l.log, read: func(ctx context.Context, shard record.ShardID, from record.LSN, n, bytes int) ([]metalog.Entry, error) {
			entries, err := l.log.Read(ctx, shard, from, n, bytes)
			if err == nil && len(entries) > 1 && l.now() {
				entries = change(entries)
			}
			return entries, err
		}}
	}
}

// appends lies about appends.
func appends(instead func(ctx context.Context, l *liar, a *metalog.Append) ([]metalog.Appended, error)) lie {
	return func(l *liar) linear.Log {
		return &patched{Log: l.log, append: func(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
			if l.now() {
				return instead(ctx, l, a)
			}
			return l.log.Append(ctx, a)
		}}
	}
}

// tails lies about states.
func tails(change func(st *metalog.State)) lie {
	return func(l *liar) linear.Log {
		return &patched{Log: l.log, tail: func(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
			states, err := l.log.Tail(ctx, shards)
			if err == nil && states[0].NextLSN > 2 && l.now() {
				change(&states[0])
			}
			return states, err
		}}
	}
}

// subscriptions lies to subscribers.
func subscriptions(change func(u *metalog.Update)) lie {
	return func(l *liar) linear.Log {
		return &patched{Log: l.log, subscribe: func(updates []metalog.Update) []metalog.Update {
			for i := range updates {
				if len(updates[i].Entries) > 0 && l.now() {
					change(&updates[i])
				}
			}
			return updates
		}}
	}
}

// silence is the lie that shows in nothing but the time that passes.
const silence = "a subscription never brings records"

var lies = map[string]lie{
	"an append is acknowledged and not made": appends(func(ctx context.Context, l *liar, a *metalog.Append) ([]metalog.Appended, error) {
		done := make([]metalog.Appended, len(a.Shards))
		for i, s := range a.Shards {
			states, err := l.log.Tail(ctx, []record.ShardID{s.Shard})
			if err != nil || states[0].Epoch != s.Epoch {
				return l.log.Append(ctx, a)
			}
			done[i] = metalog.Appended{FirstLSN: states[0].NextLSN, Time: states[0].Watermark}
		}
		return done, nil
	}),
	"an append that was made is refused": appends(func(ctx context.Context, l *liar, a *metalog.Append) ([]metalog.Appended, error) {
		if done, err := l.log.Append(ctx, a); err != nil {
			return done, err
		}
		return nil, metalog.ErrClosed
	}),
	"an append is made twice": appends(func(ctx context.Context, l *liar, a *metalog.Append) ([]metalog.Appended, error) {
		if done, err := l.log.Append(ctx, a); err != nil {
			return done, err
		}
		return l.log.Append(ctx, a)
	}),
	"an append is told another LSN": appends(func(ctx context.Context, l *liar, a *metalog.Append) ([]metalog.Appended, error) {
		done, err := l.log.Append(ctx, a)
		if err == nil {
			done[0].FirstLSN++
		}
		return done, err
	}),
	"an append is told another time": appends(func(ctx context.Context, l *liar, a *metalog.Append) ([]metalog.Appended, error) {
		done, err := l.log.Append(ctx, a)
		if err == nil {
			done[0].Time -= int64(time.Hour / time.Microsecond)
		}
		return done, err
	}),
	"a transaction is made in one of its logs": appends(func(ctx context.Context, l *liar, a *metalog.Append) ([]metalog.Appended, error) {
		done, err := l.log.Append(ctx, &metalog.Append{Shards: a.Shards[:1]})
		if err != nil || len(a.Shards) == 1 {
			return done, err
		}
		return nil, errors.New("the rest is unknown")
	}),
	"an older epoch appends": func(l *liar) linear.Log {
		return &patched{
			Log: l.log,
			open: func(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
				states, err := l.log.Open(ctx, owner, shards)
				if err == nil {
					l.mu.Lock()
					l.epochs[shards[0]] = max(l.epochs[shards[0]], states[0].Epoch)
					l.mu.Unlock()
				}
				return states, err
			},
			append: func(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
				if l.now() {
					l.mu.Lock()
					for i := range a.Shards {
						a.Shards[i].Epoch = l.epochs[a.Shards[i].Shard]
					}
					l.mu.Unlock()
				}
				return l.log.Append(ctx, a)
			},
		}
	},
	"an epoch is given out twice": func(l *liar) linear.Log {
		return &patched{Log: l.log, open: func(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
			states, err := l.log.Tail(ctx, shards)
			if err != nil || states[0].Epoch == 0 || !l.now() {
				return l.log.Open(ctx, owner, shards)
			}
			return states, nil
		}}
	},
	"a read lacks what was there before": reads(func(entries []metalog.Entry) []metalog.Entry {
		return entries[:len(entries)/2]
	}),
	"a read has another record": reads(func(entries []metalog.Entry) []metalog.Entry {
		entries[0].Data[7] ^= 1
		return entries
	}),
	"a read has another time": reads(func(entries []metalog.Entry) []metalog.Entry {
		entries[0].Time++
		return entries
	}),
	"a read changes the order": reads(func(entries []metalog.Entry) []metalog.Entry {
		entries[0].Data, entries[1].Data = entries[1].Data, entries[0].Data
		return entries
	}),
	"a read leaves out a record": reads(func(entries []metalog.Entry) []metalog.Entry { return entries[1:] }),
	"a read finds what was trimmed": func(l *liar) linear.Log {
		return &patched{Log: l.log, trim: func(context.Context, record.ShardID, record.LSN) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.told++
			return nil
		}}
	},
	"the tail is an old one": tails(func(st *metalog.State) { st.NextLSN-- }),
	"the tail is ahead":      tails(func(st *metalog.State) { st.NextLSN++ }),
	"the epoch is an old one": tails(func(st *metalog.State) {
		st.Epoch--
	}),
	"the watermark is ahead": tails(func(st *metalog.State) { st.Watermark += int64(time.Hour / time.Microsecond) }),
	"the first LSN is another one": tails(func(st *metalog.State) {
		st.FirstLSN++
	}),
	"a subscription leaves out records": subscriptions(func(u *metalog.Update) { u.Entries = u.Entries[1:] }),
	silence: func(l *liar) linear.Log {
		return &patched{Log: l.log, subscribe: func(updates []metalog.Update) []metalog.Update {
			l.mu.Lock()
			l.told++
			l.mu.Unlock()
			for i := range updates {
				updates[i].Entries, updates[i].NextLSN, updates[i].TrimmedTo = nil, 1, 0
			}
			return updates
		}}
	},
	"a subscription brings another record": subscriptions(func(u *metalog.Update) {
		u.Entries[0].Data = append([]byte(nil), u.Entries[0].Data...)
		u.Entries[0].Data[7] ^= 1
	}),
	"a subscription's time is another one": subscriptions(func(u *metalog.Update) { u.Entries[len(u.Entries)-1].Time++ }),
	"what an ended subscription promised does not hold": func(l *liar) linear.Log {
		return &patched{Log: l.log, promise: func(u *metalog.Update) *metalog.Update {
			if u.Watermark == 0 || !l.now() {
				return nil
			}
			return &metalog.Update{Shard: u.Shard, NextLSN: u.NextLSN, Watermark: u.Watermark + int64(time.Hour/time.Microsecond)}
		}}
	},
	"a subscription's watermark is ahead": subscriptions(func(u *metalog.Update) {
		u.Watermark = u.Entries[0].Time + int64(time.Hour/time.Microsecond)
	}),
}

// onlyLate reports whether all that was found is that subscriptions were not there in time. They are given little of it, since some lies make
// them wait for what never comes; on a busy machine they may be late without a lie.
func onlyLate(err error) bool {
	for line := range strings.Lines(err.Error()) {
		if !strings.Contains(line, "did not bring") {
			return false
		}
	}
	return true
}

// TestLiesAreFound: each lie is found, within a few runs of a log that tells it now and then.
func TestLiesAreFound(t *testing.T) {
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(50) {
				fs := vfs.NewMem()
				e := engine(t, fs)
				l := &liar{log: e, rng: rand.New(rand.NewPCG(seed, 1)), epochs: map[record.ShardID]uint64{}} //nolint:gosec // reproducible on purpose
				cfg := linear.Config{Seed: seed, Clients: 4, Calls: 25, CatchUp: 100 * time.Millisecond}
				err := linear.Run(t.Context(), cfg, lie(l)).Check()
				closed(t, e)
				switch {
				case err == nil, errors.Is(err, linear.ErrUndecided), onlyLate(err) && (name != silence || l.told == 0):
					continue
				case l.told == 0:
					t.Fatalf("seed %d: nobody lied, and yet: %v", seed, err)
				}
				return
			}
			t.Error("the lie is not found")
		})
	}
}

// TestForgetfulEngine: an engine that forgets what it acknowledged when it crashes is found out, one that does not is not.
func TestForgetfulEngine(t *testing.T) {
	for _, forgetful := range []bool{false, true} {
		found := false
		for seed := range uint64(20) {
			if found || seed >= 5 && !forgetful {
				break
			}
			fs := vfs.NewCrashableMem()
			e := engine(t, fs)
			line := linear.NewLine(e)
			rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible on purpose
			stale := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: rng})
			disturb := func(rng *rand.Rand) {
				line.Break(func() linear.Log {
					left := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(3) * 50, RNG: rng})
					if forgetful {
						left, stale = stale, left
					}
					closed(t, e)
					fs = left
					e = engine(t, fs)
					return e
				})
			}
			err := linear.Run(t.Context(), linear.Config{Seed: seed, Calls: 30, Disturb: disturb, Disturbances: 3}, line).Check()
			closed(t, e)
			if errors.Is(err, linear.ErrUndecided) {
				continue
			}
			if err != nil && !forgetful {
				t.Errorf("seed %d: %v", seed, err)
			}
			found = found || err != nil
		}
		if forgetful && !found {
			t.Error("what the engine forgot is not missed")
		}
	}
}

// TestHonestLog: nothing is found where there is nothing, and a history has all that it should.
func TestHonestLog(t *testing.T) {
	fs := vfs.NewMem()
	e := engine(t, fs)
	h := linear.Run(t.Context(), linear.Config{Seed: 1, Clients: 8, Calls: 60, Subscribers: 2}, e)
	if err := h.Check(); err != nil {
		t.Error(err)
	}
	if h.Len() < 8*60 {
		t.Errorf("%d operations", h.Len())
	}
	closed(t, e)
}
