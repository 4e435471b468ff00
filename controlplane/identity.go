package controlplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// probeTimeout bounds the question to the holder of an id whether it is alive. It is a part of the time that a call of Join has.
const probeTimeout = 500 * time.Millisecond

// competes reports whether a member wants the id that another start of a program holds. One of an older program can't be told apart.
func competes(holder *memberLease, incarnation string) bool {
	return holder != nil && incarnation != "" && holder.member.GetIncarnation() != "" && holder.member.GetIncarnation() != incarnation
}

// findHolder returns a copy of the live lease of another process with the id; nil if there is none.
func (m *memberDriver) findHolder(id, incarnation string) *memberLease {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.registry.findHolder(id, incarnation, time.Now())
}

// findHolder returns a copy of the live lease of another process with the id; nil if there is none.
func (r *memberRegistry) findHolder(id, incarnation string, now time.Time) *memberLease {
	if l := r.leases[id]; competes(l, incarnation) && now.Before(l.deadline) {
		held := *l
		return &held
	}
	return nil
}

// examineHolder decides whether a member may take over its id from another process. It returns the incarnation that may be replaced, which is
// certain not to run any more, and fails while that one lives, or may live.
func (c *ControlPlane) examineHolder(ctx context.Context, what string, member *scribev1.Member) (replaced string, err error) {
	holder := c.members.findHolder(member.GetId(), member.GetIncarnation())
	if holder == nil || c.deps.Probe == nil {
		return holder.incarnation(), nil
	}
	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	at, held := holder.member.GetUrl(), holder.member.GetIncarnation()
	serving, err := c.deps.Probe(probe, at)
	switch {
	case err == nil && serving == held:
		c.metrics.refusals.WithLabelValues(refusedID).Inc()
		c.logger.Error("member refused: another process with its id is alive", "member", member.GetId(), "url", member.GetUrl(), "holder", at, "slot", holder.member.GetSlot())
		return "", rpc.Errorf(scribev1.Reason_REASON_MEMBER_REFUSED, "%s: the process at %s has this id and is alive, and this one is at %s: give each its own --id and its own data folder, or stop the other one",
			what, at, member.GetUrl())
	case err == nil, errors.Is(err, syscall.ECONNREFUSED), member.GetUrl() == at:
		// Another process is at the address, or none, or this one is: it would have answered as the holder if it were.
		return held, nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	}
	rest := time.Until(holder.deadline)
	return "", rpc.RetryErrorf(scribev1.Reason_REASON_MEMBER_REFUSED, max(min(rest, probeTimeout), minTTL),
		"%s: the process at %s has this id and does not answer; its lease ends in %v, and this process can join then: %w", what, at, rest.Round(time.Millisecond), err)
}

func (l *memberLease) incarnation() string {
	if l == nil {
		return ""
	}
	return l.member.GetIncarnation()
}

// errReplaced refuses a process whose id another one has taken over.
func (c *ControlPlane) errReplaced(what string, holder *memberLease) error {
	c.metrics.refusals.WithLabelValues(refusedID).Inc()
	return rpc.Errorf(scribev1.Reason_REASON_MEMBER_REFUSED, "%s: the process at %s has taken this id over, since this one did not answer: give each its own --id and its own data folder, or stop one",
		what, holder.member.GetUrl())
}

// cellStore is the identity of the cell's store of payloads, which never changes once it is known.
type cellStore struct {
	mu struct {
		sync.Mutex
		identity string // "" while it was not read
	}
}

func (s *cellStore) known() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.identity
}

func (s *cellStore) keepIdentity(identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.identity = identity
}

// checkStore refuses a member whose store of payloads is not the cell's. The first one that names its store decides which that is: of a new cell, and of one
// that is older than identities of stores.
func (c *ControlPlane) checkStore(ctx context.Context, what string, term *heldTerm, store string) error {
	if store == "" {
		return nil // not known yet, or the process has none
	}
	known, err := c.awaitCellStore(ctx, term, store)
	if err != nil {
		return c.termError(what, err)
	}
	if known == store {
		return nil
	}
	c.metrics.refusals.WithLabelValues(refusedStore).Inc()
	c.logger.Error("member refused: its store of payloads is not the cell's", "call", what, "store", store, "cell", known)
	return rpc.Errorf(scribev1.Reason_REASON_MEMBER_REFUSED, "%s: its store of payloads is %s, and the cell's is %s: correct --blobs, --blob-path or --s3-bucket and --s3-prefix. "+
		"If the payloads were moved, move the object store/identity with them", what, store, known)
}

// awaitCellStore returns the identity of the cell's store, and makes it the given one if there is none.
func (c *ControlPlane) awaitCellStore(ctx context.Context, term *heldTerm, store string) (string, error) {
	if known := c.store.known(); known != "" {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	e, err := c.deps.Store.Get(ctx, cellStoreKey)
	switch {
	case errors.Is(err, kv.ErrNotFound):
		_, err := c.deps.Store.Commit(ctx, term.only(kv.Put(cellStoreKey, []byte(store)).If(0))...)
		if err != nil {
			return "", err // after a conflict the caller, who tries again, finds the other one's
		}
		c.logger.Info("the cell's store of payloads is known from now on", "store", store)
	case err != nil:
		return "", err
	default:
		store = string(e.Value)
		if store == "" || len(store) > maxIdentity {
			return "", fmt.Errorf("%w: %s has %d bytes", kv.ErrCorrupt, cellStoreKey, len(store))
		}
	}
	c.store.keepIdentity(store)
	return store, nil
}
