package membership

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/config"
	"scribe/internal/cell/watch"
	scribev1 "scribe/proto/scribe/v1"
)

// MemberSource is the part of the control plane that a view uses. rpc.ControlService has it.
type MemberSource interface {
	WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error
}

// ViewConfig configures a view. Start from DefaultViewConfig.
type ViewConfig struct{ watch.Config }

// DefaultViewConfig returns the defaults, without a file.
func DefaultViewConfig() ViewConfig { return config.Defaults[ViewConfig]() }

// Validate reports every violation.
func (c ViewConfig) Validate() error {
	return config.Check("membership", &c, nil).Err()
}

// ViewDeps are the dependencies of a view.
type ViewDeps struct {
	// Source is required.
	Source MemberSource
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// View is a process's copy of the membership, for routing. While the control plane is unavailable it keeps the last list; calls
// to members that have left fail.
type View struct {
	*watch.Loop[*scribev1.WatchMembersResponse]
	list atomic.Pointer[memberList]
}

// memberList is one immutable state of the membership.
type memberList struct {
	all    []*scribev1.Member
	byRole map[scribev1.Role][]*scribev1.Member
	// last has, for each role that no member offers, its members in the newest earlier list that had any.
	last map[scribev1.Role][]*scribev1.Member
	// replaced is closed when another list has replaced this one.
	replaced chan struct{}
	// sentAt is when the list was sent, by the clock of Member.joined_at, in Unix microseconds; received is when it came. sentAt is 0 for a
	// list of an older control plane and for that of the file.
	sentAt   int64
	received time.Time
}

// newList returns the list that follows before; before is nil for the first.
func newList(members []*scribev1.Member, before *memberList) *memberList {
	l := &memberList{all: members, byRole: make(map[scribev1.Role][]*scribev1.Member), replaced: make(chan struct{})}
	for _, m := range members {
		for i, role := range m.GetRoles() {
			if !slices.Contains(m.GetRoles()[:i], role) {
				l.byRole[role] = append(l.byRole[role], m)
			}
		}
	}
	if before == nil {
		return l
	}
	l.last = maps.Clone(before.last)
	for role, members := range before.byRole {
		if l.last == nil {
			l.last = make(map[scribev1.Role][]*scribev1.Member)
		}
		l.last[role] = members
	}
	maps.DeleteFunc(l.last, func(role scribev1.Role, _ []*scribev1.Member) bool { return len(l.byRole[role]) > 0 })
	return l
}

// NewView returns a view with the members of the file, if it exists and is readable, or with none. Run keeps it current.
func NewView(cfg ViewConfig, deps ViewDeps) (*View, error) {
	if deps.Source == nil {
		return nil, errors.Join(errors.New("membership: missing source"), cfg.Validate())
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	v := &View{}
	v.list.Store(newList(nil, nil))
	var err error
	v.Loop, err = watch.NewLoop(cfg.Config, watch.WatchedCopy[*scribev1.WatchMembersResponse]{
		Package: "membership", Plural: "members",
		Watch: func(ctx context.Context, heartbeat *durationpb.Duration, receive func(*scribev1.WatchMembersResponse) error) error {
			return deps.Source.WatchMembers(ctx, &scribev1.WatchMembersRequest{Heartbeat: heartbeat}, receive)
		},
		Apply: v.applyList, Count: func() int { return len(v.list.Load().all) }, Decode: v.takeFile, Encode: v.writeMembers,
	}, deps.Logger, deps.Registerer)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Members returns the members that offer a role, by id; all members for ROLE_UNSPECIFIED. It takes no lock. The slice and the
// members are shared and must not be changed; a later list is another slice.
func (v *View) Members(role scribev1.Role) []*scribev1.Member {
	members, _ := v.Watch(role)
	return members
}

// Last is like Members, but if no member offers the role it returns the members of the newest earlier list that had any. A
// control plane that restarts after the leases of its members have expired, or without its store, lists no members until they
// join again, while they continue to work. It is for callers that lose nothing by calling a member that has left.
func (v *View) Last(role scribev1.Role) []*scribev1.Member {
	l := v.list.Load()
	if members := l.byRole[role]; len(members) > 0 {
		return members
	}
	return l.last[role]
}

// Watch is like Members, and also returns a channel that is closed when there is a newer list.
func (v *View) Watch(role scribev1.Role) ([]*scribev1.Member, <-chan struct{}) {
	l := v.list.Load()
	if role == scribev1.Role_ROLE_UNSPECIFIED {
		return l.all, l.replaced
	}
	return l.byRole[role], l.replaced
}

// AgeOf returns how long ago a member of the present list joined. known is false if the list does not tell.
func (v *View) AgeOf(m *scribev1.Member) (age time.Duration, known bool) {
	l := v.list.Load()
	if l.sentAt == 0 || m.GetJoinedAt() == 0 {
		return 0, false
	}
	return max(time.Duration(l.sentAt-m.GetJoinedAt())*time.Microsecond, 0) + time.Since(l.received), true
}

// applyList applies a list, and wakes its waiters unless it equals the last one. The file has no loads.
func (v *View) applyList(msg *scribev1.WatchMembersResponse) (complete, changed bool) {
	old, members := v.list.Load(), msg.GetMembers()
	if slices.EqualFunc(old.all, members, func(a, b *scribev1.Member) bool { return proto.Equal(a, b) }) {
		return true, false
	}
	next := newList(members, old)
	next.sentAt, next.received = msg.GetSentAt(), time.Now()
	v.list.Store(next)
	close(old.replaced)
	return true, !sameIdentities(old.all, members)
}
