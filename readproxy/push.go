package readproxy

import (
	"context"
	"errors"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Bounds of one push (proto/scribe/v1/readproxy.proto).
const (
	maxPushedBlocks     = 1000
	maxPushedCategories = 1000
	// pushCopies is the memory of a push while it is read and decoded, as a multiple of its length.
	pushCopies = 2
)

// freshAge is the age of a blob up to which a fetch waits for its push. It allows for clocks that differ.
const freshAge = time.Second

// Outcomes of pushed blocks, as values of a label.
const (
	pushKept    = "kept"
	pushPresent = "present" // in memory before
	pushPolicy  = "policy"  // the categories' policies keep it in no tier
	pushOld     = "old"
	pushInvalid = "invalid"
	pushDamaged = "damaged"
	pushBusy    = "busy"   // no memory to decompress it
	pushNoKey   = "no_key" // it is encrypted, and can't be decrypted
	pushFull    = "full"   // it would displace blocks that are read
)

// AdmitPush is called before n bytes of a push are read. The caller calls release once the push was answered.
func (s *Server) AdmitPush(n int64) (release func(), err error) {
	return s.pushes.Admit(pushCopies * n)
}

// Push implements rpc.PushService. A block is checked as if it had been fetched. It is then kept as its categories' policies say,
// in memory, in memcached or in both.
func (s *Server) Push(_ context.Context, req *scribev1.PushRequest) (*scribev1.PushResponse, error) {
	if !s.calls.Enter() {
		return nil, s.shutdownError()
	}
	defer s.calls.Leave()
	if n := len(req.GetBlocks()); n > maxPushedBlocks {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "push: %d blocks, at most %d", n, maxPushedBlocks)
	}
	for _, b := range req.GetBlocks() {
		s.metrics.pushed.WithLabelValues(s.takeBlock(b)).Inc()
	}
	version, wanted := s.tails.wantedSince(req.GetVersion(), s.deps.Now())
	return &scribev1.PushResponse{Version: version, Wanted: wanted}, nil
}

// takeBlock keeps a pushed block, and returns the outcome.
func (s *Server) takeBlock(b *scribev1.PushedBlock) (outcome string) {
	p, err := pointer.Decode(b.GetPointer())
	if err != nil || s.localName(p.Region) != "" || len(b.GetCategories()) == 0 || len(b.GetCategories()) > maxPushedCategories {
		s.log.Warn("invalid pushed block refused", "categories", len(b.GetCategories()), "region", p.Region, "error", err)
		return pushInvalid
	}
	p.Sequences = nil
	now := s.deps.Now()
	if !s.isYoung(&p) {
		return pushOld
	}
	keep := s.placePushed(b.GetCategories(), now)
	if !keep.memory && keep.shared == nil {
		return pushPolicy
	}
	if err := checkStored(&p, b.GetData()); err != nil {
		s.metrics.damaged.WithLabelValues(tierPush).Inc()
		s.log.Error("pushed block does not match its checksum: refused", "blob", p.Key(), "block", p.BlockOffset, "error", err)
		return pushDamaged
	}
	outcome = s.keepForms(&p, b.GetData(), &keep)
	if keep.shared != nil && outcome != pushPresent && outcome != pushInvalid && outcome != pushDamaged {
		s.fills.blockFetched(keep.shared, &p, b.GetData())
		outcome = pushKept
	}
	if outcome == pushKept {
		s.metrics.pushedBytes.Add(float64(len(b.GetData())))
	}
	return outcome
}

// pushedPlace says where a pushed block is kept, and in which forms.
type pushedPlace struct {
	memory        bool
	stored, parts bool  // forms that readers need: as stored, and as payloads are cut from
	shared        *Rule // for memcached; nil if it is not kept there
}

// placePushed decides where a block of some categories is kept. A category that this server does not know yet counts for nothing.
func (s *Server) placePushed(categories []string, now time.Time) (keep pushedPlace) {
	for _, name := range categories {
		cat, ok := s.deps.Categories.Lookup(name)
		if !ok {
			continue
		}
		rule := s.cfg.ruleFor(name, cat.GetCache())
		if !s.keepsPushed(&rule) {
			continue
		}
		stored, parts := s.tails.notePush(name, now)
		keep.memory = keep.memory || rule.Memory != KeepNever && s.cfg.CacheBytes > 0
		keep.stored, keep.parts = keep.stored || stored, keep.parts || parts
		if rule.Shared == KeepAlways && s.shared != nil && (keep.shared == nil || rule.SharedAge > keep.shared.SharedAge) {
			keep.shared = &rule
		}
	}
	return keep
}

// keepForms keeps the forms of a verified block that its readers need, and returns the outcome. A payload that is a whole
// block is cut from nothing: it has one form.
func (s *Server) keepForms(p *pointer.Pointer, stored []byte, keep *pushedPlace) (outcome string) {
	whole := p.Offset == 0 && p.Length == p.BlockRawLen
	outcome = pushPresent
	for _, raw := range []bool{false, true} {
		if raw && (whole || !keep.parts) || !raw && !whole && !keep.stored {
			continue
		}
		switch form := s.keepForm(p, stored, raw, keep.memory); {
		case form == pushKept, outcome == pushPresent:
			outcome = form
		}
	}
	return outcome
}

// keepForm gives one form of a block to the fetch that waits for it, or keeps it in memory.
func (s *Server) keepForm(p *pointer.Pointer, stored []byte, raw, memory bool) (outcome string) {
	key := blockKeyOf(p, raw)
	switch {
	case !memory && !s.isAwaited(key):
		return pushKept // by memcached alone
	case s.cache.hasBlock(key):
		return pushPresent
	}
	if raw && p.Codec != pointer.CodecNone {
		need := min(int64(p.BlockRawLen), s.cfg.FetchBytes)
		if !s.fetchBytes.TryAcquire(need) {
			return pushBusy
		}
		defer s.fetchBytes.Release(need)
	}
	b, err := s.newBlock(p, stored, raw)
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_UNSPECIFIED {
		return pushNoKey
	}
	if err != nil {
		s.log.Error("pushed block is damaged: refused", "blob", p.Key(), "block", p.BlockOffset, "error", err)
		if errors.Is(err, record.ErrVersion) {
			return pushInvalid
		}
		s.metrics.damaged.WithLabelValues(tierPush).Inc()
		return pushDamaged
	}
	s.fetches.Lock()
	defer s.fetches.Unlock()
	if f := s.fetches.running[key]; f != nil {
		if !f.awaitsPush {
			return pushPresent // in a moment
		}
		f.awaitsPush, f.block = false, b // its goroutine adds it to the cache
		close(f.pushed)
		return pushKept
	}
	if memory && !s.cache.addPushed(key, b) {
		return pushFull
	}
	return pushKept
}

// isAwaited reports whether a fetch waits for a block to be pushed.
func (s *Server) isAwaited(k blockKey) bool {
	s.fetches.Lock()
	defer s.fetches.Unlock()
	f := s.fetches.running[k]
	return f != nil && f.awaitsPush
}

// markAwaiting marks a new fetch if its block is likely to be pushed in a moment. Server.fetches is held.
func (s *Server) markAwaiting(f *blockFetch) {
	now := s.deps.Now()
	age := blobAge(&f.p, now)
	if s.cfg.PushWait <= 0 || !s.keepsPushed(&f.rule) || s.localName(f.p.Region) != "" || age > freshAge || age < -freshAge ||
		!s.tails.expectsPush(f.category, now) {
		return
	}
	f.awaitsPush, f.pushed = true, make(chan struct{})
}

// fromPushes ends the fetches whose blocks are pushed within Config.PushWait, and returns the others. A batcher pushes a block
// while it puts its blob, so a reader that asks before it has arrived is likely to be a moment too early.
func (s *Server) fromPushes(fs []*blockFetch) (rest []*blockFetch) {
	timer := time.NewTimer(s.cfg.PushWait)
	defer timer.Stop()
	late := false
	for _, f := range fs {
		if !late {
			select {
			case <-f.pushed:
			case <-timer.C:
				late = true
			case <-s.running.Done():
				late = true
			}
		}
		s.fetches.Lock()
		f.awaitsPush = false
		block := f.block
		s.fetches.Unlock()
		if block == nil {
			s.metrics.pushWaits.WithLabelValues("missed").Inc()
			rest = append(rest, f)
			continue
		}
		s.metrics.pushWaits.WithLabelValues("arrived").Inc()
		s.metrics.hits.WithLabelValues(tierPush).Inc()
		s.metrics.saved.WithLabelValues(tierPush).Add(float64(f.p.BlockLen))
		s.endFetch(f, block, nil)
	}
	return rest
}
