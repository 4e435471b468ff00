package controlplane

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/base/entropy"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// MaxSlot is the largest writer slot of a member. 0 is for exactly-once categories; larger slots are reserved.
const MaxSlot = 64_999

// Config configures a control plane. Start from [config.Defaults].
type Config struct {
	// Version, StartedAt and Roles describe the process in GetStatus.
	Version   string `default:"unknown"`
	StartedAt time.Time
	Roles     []scribev1.Role

	// MaxCategories bounds the number of categories; a create above it is refused.
	MaxCategories int `default:"1000000" min:"1" max:"2147483648"`
	// MaxDeletions is how many deletions are remembered for watches. A watch that missed more starts over.
	MaxDeletions int `default:"10000" min:"1" max:"2147483648"`
	// MaxWatches bounds the concurrent watches, of categories and of members; further ones are refused.
	MaxWatches int `default:"10000" min:"1" max:"2147483648"`
	// BatchCategories and BatchBytes bound a message of a category watch. One category is sent even if it is larger.
	BatchCategories int `default:"1000" min:"1" max:"100000"`
	BatchBytes      int `default:"512KiB" min:"1B" max:"16MiB"`
	// IDBlock is how many ids are taken from the persisted counter at once. A crash may skip as many ids.
	IDBlock uint32 `default:"256" min:"1" max:"1048576"`
	// MaxSlot is the largest writer slot, and so bounds the number of members; at most the constant MaxSlot.
	MaxSlot uint32 `default:"64999" min:"1" max:"MaxSlotOfAll"`
	// MemberInterval is the shortest time between two messages of a member watch: one message carries all changes in between.
	MemberInterval time.Duration `default:"50ms" min:"0s"`
	// LoadInterval is the longest delay of a clear change of a member's load before it is sent. A slight one goes with the next heartbeat of a watch.
	LoadInterval time.Duration `default:"1s" min:">0s"`
	// RetireTimeout bounds one attempt to retire a deleted category. An attempt takes time in proportion to the number of its
	// logs.
	RetireTimeout time.Duration `default:"30s" min:">0s"`
	// CreatePatience is how long a create waits until a deleted category of its name is retired; then it is refused.
	CreatePatience time.Duration `default:"5s" min:"0s"`

	// MicroShardBytes and MicroShardMessages are what one batcher should get of a logical shard, a second: those of the write proxies.
	MicroShardBytes    int64 `default:"16MiB" min:"1KiB" max:"1TiB"`
	MicroShardMessages int64 `default:"400000" min:"1" max:"1000000000000"`
	// PlanInterval is how often the micro-shards of all categories are planned anew.
	PlanInterval time.Duration `default:"5s" min:"1ms" max:"1h"`

	// MembersProven says that members of the cell prove who they are, so that a closed cell can tell them from clients. Else only the
	// control plane's own process may be a member when the first token is issued or the first grant given.
	MembersProven bool

	// Shared says that other control planes may use the same store. Then one of them leads, and the others pass its calls on.
	Shared bool
	// Instance names this control plane among those that share the store; no two running ones have the same name. URL is where the
	// others reach it. Both are required where the store is shared.
	Instance, URL string
	// BeatInterval is how often the leader shows that it is alive, and the others look.
	BeatInterval time.Duration `default:"250ms" min:"1ms" max:"1m"`
	// TakeoverAfter is the silence after which another control plane takes over.
	TakeoverAfter time.Duration `default:"1s" min:"BeatInterval" max:"1h"`
	// MaxForwarded bounds the calls and watches that are passed on to the leader at a time; further ones are refused.
	MaxForwarded int `default:"10000" min:"1" max:"2147483648"`
}

// Validate reports every violation.
func (c Config) Validate() error {
	v := config.Check("controlplane", &c, config.Bounds{"MaxSlotOfAll": MaxSlot})
	for field, text := range map[string]string{"Instance": c.Instance, "URL": c.URL} {
		if c.Shared && (text == "" || len(text) > maxLeaderText) {
			v.Add(field, "invalid value of %d bytes: want 1 to %d where the store is shared", len(text), maxLeaderText)
		}
	}
	return v.Err()
}

// Deps are the dependencies of a control plane.
type Deps struct {
	// Store keeps the state. It is required. The caller owns it: Close does not close it.
	Store kv.Store
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer may be nil.
	Registerer prometheus.Registerer
	// Now gives the times that are stored. Leases always run by the monotonic clock. Nil means time.Now.
	Now func() time.Time
	// Random draws jitter; nil means the machine's randomness.
	Random *entropy.Source
	// Retirer retires the logs of deleted categories. It may fail as often as it likes: failures are retried. With nil, pending
	// retirements wait for a control plane that has a Retirer, and their names can't be used again until then.
	Retirer Retirer
	// Logs lists the logs of categories, for people. With nil, or while it fails, nothing is said of them.
	Logs LogLister
	// Peer returns a client for the control plane at a URL. It is required where the store is shared.
	Peer func(url string) rpc.ControlService
	// Probe asks who serves at a member's URL, and returns the incarnation of that process. Nil: a process that joins takes over its id from whoever has it.
	Probe func(ctx context.Context, url string) (incarnation string, err error)
}
