package controlplane

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/base/logthrottle"
	"scribe/internal/cell/access"
)

const (
	// tendInterval is how often the records of a closed cell are tended.
	tendInterval = time.Minute
	// keyInterval is the age at which a ticket key is replaced. Tickets last for access.TicketTTL, so a key is kept for longer.
	keyInterval = 24 * time.Hour
	keyGrace    = keyInterval + 2*access.TicketTTL
	// tokenGrace is how long a token is listed after it has ended.
	tokenGrace = 7 * 24 * time.Hour
)

// tendAccess replaces ticket keys, and removes old keys and tokens that ended long ago, until the control plane stops. Any number of
// control planes may tend one store. An open cell costs it nothing.
func (c *ControlPlane) tendAccess() {
	ticker := time.NewTicker(tendInterval)
	defer ticker.Stop()
	var trouble logthrottle.Throttle
	for {
		select {
		case <-ticker.C:
		case <-c.stopped.Done():
			return
		}
		if c.accessFeed.countLive() == 0 {
			continue
		}
		if err := c.changeAccess(c.stopped, accessTended, "tend tokens and keys", c.decideTending); err != nil {
			trouble.Failed(c.stopped, c.logger, "tokens and ticket keys were not tended", "error", err)
			continue
		}
		trouble.Recovered(c.stopped, c.logger, "tokens and ticket keys are tended again")
	}
}

// maxTended bounds the records that one change removes.
const maxTended = 100

// decideTending chooses what is due.
func (c *ControlPlane) decideTending(a *storedAccess) (accessChange, error) {
	change := accessChange{put: map[string]proto.Message{}}
	if !a.set.Closed() {
		return change, nil
	}
	now := c.deps.Now()
	newest, createdAt := a.set.NewestKey()
	if now.Sub(time.UnixMicro(createdAt)) >= keyInterval {
		change.put[access.KeyKey(newest+1)] = c.newTicketKey(newest + 1)
	}
	for key, value := range a.records {
		if len(change.removed) == maxTended {
			break
		}
		if id, ok := strings.CutPrefix(key, access.TokenKey("")); ok {
			t, err := access.DecodeToken(id, value)
			if ended := tokenEnd(t.GetExpiresAt(), t.GetRevokedAt()); err == nil && ended != 0 && now.Sub(time.UnixMicro(ended)) >= tokenGrace {
				change.removed = append(change.removed, key)
			}
			continue
		}
		if k, err := access.DecodeKey(key, value); err == nil && k.GetId() < newest && now.Sub(time.UnixMicro(k.GetCreatedAt())) >= keyGrace {
			change.removed = append(change.removed, key)
		}
	}
	return change, nil
}

// tokenEnd returns when a token ended or ends, 0 for never.
func tokenEnd(expires, revoked int64) int64 {
	if revoked != 0 && (expires == 0 || revoked < expires) {
		return revoked
	}
	return expires
}
