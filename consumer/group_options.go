package consumer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

// Defaults of the options of groups.
const (
	DefaultGroupTTL      = 10 * time.Second
	DefaultRevokeTimeout = time.Minute
	DefaultAutoCommit    = 5 * time.Second
	DefaultGroupBuckets  = 256
)

// GroupService coordinates groups: an RPC client, or in one process the control plane itself.
type GroupService interface {
	JoinGroup(ctx context.Context, req *scribev1.JoinGroupRequest) (*scribev1.JoinGroupResponse, error)
	HeartbeatGroup(ctx context.Context, req *scribev1.HeartbeatGroupRequest) (*scribev1.HeartbeatGroupResponse, error)
	GroupPositions(ctx context.Context, req *scribev1.GroupPositionsRequest) (*scribev1.GroupPositionsResponse, error)
	CommitGroup(ctx context.Context, req *scribev1.CommitGroupRequest) (*scribev1.CommitGroupResponse, error)
	LeaveGroup(ctx context.Context, req *scribev1.LeaveGroupRequest) (*scribev1.LeaveGroupResponse, error)
}

// Sharing is how the members of a group share a category. It is decided when the group is created.
type Sharing uint8

const (
	// ShareAuto is by logical shards when the category has more than one, or one order for all readers; else by pointers. It is the default.
	ShareAuto Sharing = 0
	// SharePointers gives each payload to any member. The number of shards bounds nothing; the order of messages holds within a payload.
	SharePointers Sharing = 1
	// ShareShards gives each logical shard to one member at a time: what was written to it, all messages of a key for example, stays
	// together and in order.
	ShareShards Sharing = 2
)

// Rebalance is buckets that a member gets or gives up, see [WithOnAssigned] and [WithOnRevoked].
type Rebalance struct {
	// Generation is the group's.
	Generation uint64
	// Buckets are in order.
	Buckets []uint32
	// Lost says that the buckets are gone already: nothing of them can be committed any more.
	Lost bool
}

// groupConfig are the options of a member.
type groupConfig struct {
	member        string
	description   string
	ttl           time.Duration
	revokeTimeout time.Duration
	autoCommit    time.Duration // 0 = none
	sharing       Sharing
	buckets       uint32
	onAssigned    func(Rebalance)
	onRevoked     func(Rebalance)
	service       GroupService
}

func defaultGroupConfig() groupConfig {
	return groupConfig{ttl: DefaultGroupTTL, revokeTimeout: DefaultRevokeTimeout, autoCommit: DefaultAutoCommit}
}

// validateGroup reports every violation that concerns a member of a group.
func (c *options) validateGroup(check func(ok bool, format string, args ...any)) {
	g := &c.group
	check(len(g.member) <= 255, "WithMember: %d bytes, the limit is 255", len(g.member))
	check(len(g.description) <= 255, "WithMemberDescription: %d bytes, the limit is 255", len(g.description))
	check(g.ttl >= time.Second && g.ttl <= 5*time.Minute, "WithGroupTTL: invalid value %v: want 1s to 5m", g.ttl)
	check(g.revokeTimeout >= time.Second && g.revokeTimeout <= time.Hour, "WithRevokeTimeout: invalid value %v: want 1s to 1h", g.revokeTimeout)
	check(g.autoCommit >= 0, "WithAutoCommit: %v is negative", g.autoCommit)
	check(g.sharing <= ShareShards, "WithSharing: invalid value %d: want ShareAuto, SharePointers or ShareShards", g.sharing)
	check(g.buckets <= 1024 && g.buckets&(g.buckets-1) == 0, "WithBuckets: invalid value %d: want a power of two up to 1024", g.buckets)
	check(len(c.logicalShards) == 0, "WithLogicalShards: a group reads the whole category")
}

// memberName is unique to this process.
func memberName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "host"
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return fmt.Sprintf("%s-%d-%s", strings.ToValidUTF8(host[:min(len(host), 200)], ""), os.Getpid(), hex.EncodeToString(b[:]))
}

// WithMember names the member; the default is unique. One that joins under the name of another replaces it and takes over its buckets at
// once: with a name of its own for each replica, a program that crashed and was started again does not wait for its TTL to pass. No two
// that run at the same time may have one name.
func WithMember(name string) Option { return option(func(c *options) { c.group.member = name }) }

// WithMemberDescription says what the member is, for those who look at the group.
func WithMemberDescription(text string) Option {
	return option(func(c *options) { c.group.description = text })
}

// WithGroupTTL sets after how much silence a member is taken for dead and its buckets go to others; the default is [DefaultGroupTTL]. A
// member that can't reach the group for three quarters of it pauses, since it may be taken for dead.
func WithGroupTTL(d time.Duration) Option { return option(func(c *options) { c.group.ttl = d }) }

// WithRevokeTimeout sets how long the member may take to give buckets back, and so how long it may look at one message while others
// come or go, or leave messages uncommitted, until they are taken away from it; the default is [DefaultRevokeTimeout].
func WithRevokeTimeout(d time.Duration) Option {
	return option(func(c *options) { c.group.revokeTimeout = d })
}

// WithAutoCommit sets how often the member commits by itself: what the loop has come back from, never the message that it looks at. It also
// does when it gives buckets back and when it is closed. The default is [DefaultAutoCommit]; 0 leaves it all to [Group.Commit].
func WithAutoCommit(every time.Duration) Option {
	return option(func(c *options) { c.group.autoCommit = every })
}

// WithSharing says how a new group shares its category; the default is [ShareAuto]. A group that exists must share so.
func WithSharing(s Sharing) Option { return option(func(c *options) { c.group.sharing = s }) }

// WithBuckets says in how many parts a new group divides its category, a power of two up to 1,024: so many members can have something to
// do at most. The default is [DefaultGroupBuckets]. A group that exists must have so many.
func WithBuckets(n uint32) Option { return option(func(c *options) { c.group.buckets = n }) }

// WithOnAssigned sets a function that is told of buckets before any message of them is yielded. It is not called while the loop looks at
// a message.
func WithOnAssigned(fn func(Rebalance)) Option {
	return option(func(c *options) { c.group.onAssigned = fn })
}

// WithOnRevoked sets a function that is told of buckets which the member is about to give back: the moment to finish what was made of their
// messages and to [Group.Commit]. What is not committed when it returns comes again, at another member. It is not called while the loop
// looks at a message; no message of the buckets is yielded after it.
//
// Without it, and without auto-commit, buckets are given back with the first Commit that covers what was yielded of them.
func WithOnRevoked(fn func(Rebalance)) Option {
	return option(func(c *options) { c.group.onRevoked = fn })
}

// WithGroupService coordinates the group through this instead of a server's address.
func WithGroupService(s GroupService) Option { return option(func(c *options) { c.group.service = s }) }
