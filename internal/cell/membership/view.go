package membership

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/config"
	"scribe/internal/cell/watch"
	scribev1 "scribe/proto/scribe/v1"
)

// MemberSource is what a view needs of the control plane. rpc.ControlService has it.
type MemberSource interface {
	WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error
}

// ViewConfig is what a view is made with. Start from DefaultViewConfig.
type ViewConfig struct{ watch.Config }

// DefaultViewConfig returns the defaults, without a file.
func DefaultViewConfig() ViewConfig { return config.Defaults[ViewConfig]() }

// Validate reports every violation.
func (c ViewConfig) Validate() error {
	return config.Check("membership", &c, nil).Err()
}

// ViewDeps is what a view is given by the program.
type ViewDeps struct {
	// Source is required.
	Source MemberSource
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// View is a process's copy of the membership, for routing. While the control plane is unavailable it keeps the last list: calls to
// members that are gone fail.
type View struct {
	*watch.Loop[*scribev1.WatchMembersResponse]
	list atomic.Pointer[memberList]
}

// memberList is one state of the membership. It is never changed.
type memberList struct {
	all    []*scribev1.Member
	byRole map[scribev1.Role][]*scribev1.Member
	// last has, for roles that nobody offers, those who offered them in the newest list before that had any.
	last map[scribev1.Role][]*scribev1.Member
	// replaced is closed when another list has taken its place.
	replaced chan struct{}
}

// newList returns the list of members that follows another one; nil for the first.
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

// NewView returns a view with the members of the file, if there is one that can be read, or none. Run keeps it current.
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
		Apply: v.applyList, Count: func() int { return len(v.list.Load().all) }, Decode: v.takeFile, Encode: v.writeFile,
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

// Last is Members, but where nobody offers the role it returns those who did in the newest list that had any. A control plane that comes back after
// the leases of its members, or without its store, names nobody until they join again, and they do their work meanwhile. It is for who loses
// nothing by calling one that is gone.
func (v *View) Last(role scribev1.Role) []*scribev1.Member {
	l := v.list.Load()
	if members := l.byRole[role]; len(members) > 0 {
		return members
	}
	return l.last[role]
}

// Watch is Members, with a channel that is closed when there is a newer list.
func (v *View) Watch(role scribev1.Role) ([]*scribev1.Member, <-chan struct{}) {
	l := v.list.Load()
	if role == scribev1.Role_ROLE_UNSPECIFIED {
		return l.all, l.replaced
	}
	return l.byRole[role], l.replaced
}

// applyList takes a list, and wakes who waits for a change unless it equals the last one. The file is without loads.
func (v *View) applyList(msg *scribev1.WatchMembersResponse) (complete, changed bool) {
	old, members := v.list.Load(), msg.GetMembers()
	if slices.EqualFunc(old.all, members, func(a, b *scribev1.Member) bool { return proto.Equal(a, b) }) {
		return true, false
	}
	v.list.Store(newList(members, old))
	close(old.replaced)
	return true, !sameIdentities(old.all, members)
}
