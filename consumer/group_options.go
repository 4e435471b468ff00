package consumer

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"scribe/internal/base/entropy"
	scribev1 "scribe/proto/scribe/v1"
)

// Defaults of the options of groups.
const (
	DefaultGroupTTL      = 10 * time.Second
	DefaultRevokeTimeout = time.Minute
	DefaultAutoCommit    = 5 * time.Second
	DefaultGroupBuckets  = 256
)

// GroupService coordinates groups: an RPC client, or, in one process, the control plane itself.
type GroupService interface {
	JoinGroup(ctx context.Context, req *scribev1.JoinGroupRequest) (*scribev1.JoinGroupResponse, error)
	HeartbeatGroup(ctx context.Context, req *scribev1.HeartbeatGroupRequest) (*scribev1.HeartbeatGroupResponse, error)
	GroupPositions(ctx context.Context, req *scribev1.GroupPositionsRequest) (*scribev1.GroupPositionsResponse, error)
	CommitGroup(ctx context.Context, req *scribev1.CommitGroupRequest) (*scribev1.CommitGroupResponse, error)
	LeaveGroup(ctx context.Context, req *scribev1.LeaveGroupRequest) (*scribev1.LeaveGroupResponse, error)
}

// Sharing is how the members of a group share a category. It is set when the group is created.
type Sharing uint8

const (
	// ShareAuto shares by logical shards when the category has more than one or is sequenced, else by pointers. It is the
	// default.
	ShareAuto Sharing = 0
	// SharePointers gives each payload to any member. The number of shards does not limit the number of members; messages are
	// ordered only within a payload.
	SharePointers Sharing = 1
	// ShareShards gives each logical shard to one member at a time: the messages of a logical shard, for example all messages of
	// a key, stay together and in order.
	ShareShards Sharing = 2
)

// Rebalance is a set of buckets that a member gains or loses, see [WithOnAssigned] and [WithOnRevoked].
type Rebalance struct {
	// Generation is the group's generation.
	Generation uint64
	// Buckets are in increasing order.
	Buckets []uint32
	// Lost reports that the buckets are already gone: their messages can't be committed any more.
	Lost bool
}

// groupConfig are the options of a member.
type groupConfig struct {
	name          string
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

func defaultGroupConfig(name string) groupConfig {
	return groupConfig{name: name, ttl: DefaultGroupTTL, revokeTimeout: DefaultRevokeTimeout, autoCommit: DefaultAutoCommit}
}

// validateGroup reports every violation that concerns a member of a group.
func (c *consumerOptions) validateGroup(check func(ok bool, format string, args ...any)) {
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

// memberName returns a name that is unique to this process.
func memberName(random *entropy.Source) string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "host"
	}
	return fmt.Sprintf("%s-%d-%08x", strings.ToValidUTF8(host[:min(len(host), 200)], ""), os.Getpid(), uint32(random.Uint64()))
}

// WithMember names the member; the default is unique. A member that joins under the name of another replaces it and takes over
// its buckets at once. If each replica has a fixed name, a program that restarts after a crash does not wait for its TTL to
// expire. Two members that run at the same time must not share a name.
func WithMember(name string) Option { return func(c *consumerOptions) { c.group.member = name } }

// WithMemberDescription sets a description that the group's status shows.
func WithMemberDescription(text string) Option {
	return func(c *consumerOptions) { c.group.description = text }
}

// WithGroupTTL sets the time without a heartbeat after which a member expires and its buckets go to others; the default is
// [DefaultGroupTTL]. A member that can't reach the group for three quarters of it pauses, since it may have expired.
func WithGroupTTL(d time.Duration) Option { return func(c *consumerOptions) { c.group.ttl = d } }

// WithRevokeTimeout sets how long the member may take to give buckets back before they are taken away. It thus bounds, while
// members join or leave, how long the loop may handle one message or leave messages uncommitted. The default is
// [DefaultRevokeTimeout].
func WithRevokeTimeout(d time.Duration) Option {
	return func(c *consumerOptions) { c.group.revokeTimeout = d }
}

// WithAutoCommit sets how often the member commits by itself. It commits the messages that the loop has finished, never the one
// that the loop is handling. It also commits when it gives buckets back and when it is closed. The default is
// [DefaultAutoCommit]; 0 leaves all commits to [Group.Commit].
func WithAutoCommit(every time.Duration) Option {
	return func(c *consumerOptions) { c.group.autoCommit = every }
}

// WithSharing sets how a new group shares its category; the default is [ShareAuto]. An existing group must have the same sharing.
func WithSharing(s Sharing) Option { return func(c *consumerOptions) { c.group.sharing = s } }

// WithBuckets sets the number of buckets into which a new group divides its category, a power of two up to 1,024. It bounds the
// number of members that can have work. The default is [DefaultGroupBuckets]. An existing group must have the same number.
func WithBuckets(n uint32) Option { return func(c *consumerOptions) { c.group.buckets = n } }

// WithOnAssigned sets a function that is called with new buckets before any of their messages is yielded. It is not called while
// the loop handles a message.
func WithOnAssigned(fn func(Rebalance)) Option {
	return func(c *consumerOptions) { c.group.onAssigned = fn }
}

// WithOnRevoked sets a function that is called with the buckets that the member is about to give back. Use it to finish work on
// their messages and to [Group.Commit]. Messages that are uncommitted when it returns are delivered again, to another member. It
// is not called while the loop handles a message; no message of the buckets is yielded after it.
//
// Without it, and without auto-commit, buckets are given back with the first Commit that covers their yielded messages.
func WithOnRevoked(fn func(Rebalance)) Option {
	return func(c *consumerOptions) { c.group.onRevoked = fn }
}

// WithGroupService sets the service that coordinates the group, instead of a server's address.
func WithGroupService(s GroupService) Option { return func(c *consumerOptions) { c.group.service = s } }
