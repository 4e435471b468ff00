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
	Version   string `default:"unknown"`
	StartedAt time.Time
	Roles     []scribev1.Role

	// MaxCategories is how many categories there may be; creating more is refused.
	MaxCategories int `default:"1000000" min:"1" max:"2147483648"`
	// MaxDeletions is how many deletions are remembered for watches. A watch that is behind more than that starts over.
	MaxDeletions int `default:"10000" min:"1" max:"2147483648"`
	// MaxWatches is how many watches, of categories and of members, may run at a time; more are refused.
	MaxWatches int `default:"10000" min:"1" max:"2147483648"`
	// BatchCategories and BatchBytes bound a message of a category watch. One category is sent even if it is larger.
	BatchCategories int `default:"1000" min:"1" max:"100000"`
	BatchBytes      int `default:"512KiB" min:"1B" max:"16MiB"`
	// IDBlock is how many ids are taken from the persisted counter at once. So many numbers may be left out after a crash.
	IDBlock uint32 `default:"256" min:"1" max:"1048576"`
	// MaxSlot is the largest writer slot, and so how many members there may be; at most the constant MaxSlot.
	MaxSlot uint32 `default:"64999" min:"1" max:"MaxSlotOfAll"`
	// MemberInterval is the shortest time between two messages of a member watch: changes in between go into one.
	MemberInterval time.Duration `default:"50ms" min:"0s"`
	// LoadInterval is how long a change of a member's load may wait for the next message.
	LoadInterval time.Duration `default:"1s" min:">0s"`
	// RetireTimeout bounds one attempt to end the logs of a deleted category. It takes time in proportion to their number.
	RetireTimeout time.Duration `default:"30s" min:">0s"`
	// CreatePatience is how long a create waits for the logs of a deleted category of its name to end; then it is refused.
	CreatePatience time.Duration `default:"5s" min:"0s"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	c := config.Defaults[Config]()
	c.StartedAt = time.Now()
	return c
}

// Validate reports every violation.
func (c Config) Validate() error {
	return config.Check("controlplane", &c, config.Bounds{"MaxSlotOfAll": MaxSlot}).Err()
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
