package controlplane

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// MaxSlot is the largest writer slot that a member can get. 0 belongs to exactly-once categories, what is above is reserved.
const MaxSlot = 64_999

// Config is what a control plane is made with. Start from DefaultConfig.
type Config struct {
	// Version, StartedAt and Roles describe the process in GetStatus.
	Version   string
	StartedAt time.Time
	Roles     []scribev1.Role

	// MaxCategories is how many categories there may be; creating more is refused.
	MaxCategories int
	// MaxDeletions is how many deletions are remembered for watches. A watch that is behind more than that starts over.
	MaxDeletions int
	// MaxWatches is how many watches, of categories and of members, may run at a time; more are refused.
	MaxWatches int
	// BatchCategories and BatchBytes bound a message of a category watch. One category is sent even if it is larger.
	BatchCategories int
	BatchBytes      int
	// IDBlock is how many ids are taken from the persisted counter at once. So many numbers may be left out after a crash.
	IDBlock uint32
	// MaxSlot is the largest writer slot, and so how many members there may be; at most the constant MaxSlot.
	MaxSlot uint32
	// MemberInterval is the shortest time between two messages of a member watch: changes in between go into one.
	MemberInterval time.Duration
	// LoadInterval is how long a change of a member's load may wait for the next message.
	LoadInterval time.Duration
	// RetireTimeout bounds one attempt to end the logs of a deleted category. It takes time in proportion to their number.
	RetireTimeout time.Duration
	// CreatePatience is how long a create waits for the logs of a deleted category of its name to end; then it is refused.
	CreatePatience time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Version:         "unknown",
		StartedAt:       time.Now(),
		MaxCategories:   1_000_000,
		MaxDeletions:    10_000,
		MaxWatches:      10_000,
		BatchCategories: 1_000,
		BatchBytes:      512 << 10,
		IDBlock:         256,
		MaxSlot:         MaxSlot,
		MemberInterval:  50 * time.Millisecond,
		LoadInterval:    time.Second,
		RetireTimeout:   30 * time.Second,
		CreatePatience:  5 * time.Second,
	}
}

// Validate reports every field that is out of its range.
func (c Config) Validate() error {
	f := config.Of("controlplane")
	f.Int("MaxCategories", c.MaxCategories, 1, 1<<31)
	f.Int("MaxDeletions", c.MaxDeletions, 1, 1<<31)
	f.Int("MaxWatches", c.MaxWatches, 1, 1<<31)
	f.Int("BatchCategories", c.BatchCategories, 1, 100_000)
	f.Bytes("BatchBytes", int64(c.BatchBytes), 1, 16<<20)
	f.Int("IDBlock", int(c.IDBlock), 1, 1<<20)
	f.Int("MaxSlot", int(c.MaxSlot), 1, MaxSlot)
	f.Duration("MemberInterval", c.MemberInterval, 0, config.Open)
	f.Duration("LoadInterval", c.LoadInterval, 1, config.Open)
	f.Duration("RetireTimeout", c.RetireTimeout, 1, config.Open)
	f.Duration("CreatePatience", c.CreatePatience, 0, config.Open)
	return f.Err()
}

// Deps is what a control plane is given by the program.
type Deps struct {
	// Store keeps the state. It is required, and stays the program's: Close does not close it.
	Store kv.Store
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer may be nil.
	Registerer prometheus.Registerer
	// Now gives the times that are written down. Leases run by the monotonic clock whatever it says. Nil means time.Now.
	Now func() time.Time
	// Retirer ends the logs of deleted categories. It may fail for as long as it wants: that is tried again. Without one, nil, they
	// stay to be retired by a control plane that has one, and their names can't be used again until then.
	Retirer Retirer
}
