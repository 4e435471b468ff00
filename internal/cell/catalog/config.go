package catalog

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/base/metrics"
	"scribe/internal/cell/watch"
	scribev1 "scribe/proto/scribe/v1"
)

// CategorySource is the part of the control plane that a view uses. rpc.ControlService has it.
type CategorySource interface {
	WatchCategories(ctx context.Context, req *scribev1.WatchCategoriesRequest, send func(*scribev1.WatchCategoriesResponse) error) error
	GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error)
}

// ViewConfig configures a view. Start from DefaultViewConfig.
type ViewConfig struct {
	watch.Config
	// ResolveTimeout bounds one request of Resolve to the control plane.
	ResolveTimeout time.Duration `default:"2s" min:">0s"`
	// UnknownTTL is the period in which the control plane is asked at most UnknownAsks times for one unknown name; UnknownNames
	// bounds the names for which this is remembered.
	UnknownTTL   time.Duration `default:"1s" min:">0s"`
	UnknownAsks  int           `default:"5" min:"1"`
	UnknownNames int           `default:"4096" min:"1"`
	// ResolveRate bounds the requests a second of all names together.
	ResolveRate int `default:"500" min:"1"`
}

// DefaultViewConfig returns the defaults, without a file.
func DefaultViewConfig() ViewConfig { return config.Defaults[ViewConfig]() }

// Validate reports every violation.
func (c ViewConfig) Validate() error {
	return config.Check("catalog", &c, nil).Err()
}

// ViewDeps are the dependencies of a view.
type ViewDeps struct {
	// Source is required.
	Source CategorySource
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Values of the label "result".
const (
	resultFound   = "found"
	resultUnknown = "unknown"
	resultLimited = "limited"
	resultFailed  = "failed"
)

func newResolveCounter(r prometheus.Registerer) (*prometheus.CounterVec, error) {
	set := metrics.NewSet("scribe_catalog_")
	c := set.CounterOf("resolves_total", "Lookups of unknown or outdated categories, by result.", "result",
		resultFound, resultUnknown, resultLimited, resultFailed)
	if err := set.Register(r); err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	return c, nil
}
