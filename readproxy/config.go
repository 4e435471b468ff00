package readproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/pointer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
)

// Limits of the protocol (proto/scribe/v1/readproxy.proto).
const (
	maxPointers    = 1000
	maxAnswerBytes = 32 << 20
)

// largestBlock is what the largest block takes while it is fetched: as stored, and decompressed.
const largestBlock = pointer.MaxBlockLen + pointer.MaxBlockRaw

// maxTranscoded bounds the JSON or the Arrow of one payload: an answer must fit a message of the transport.
const maxTranscoded = 64 << 20

// Config of the role.
type Config struct {
	// CacheBytes bounds the blocks that are kept; 0 keeps none.
	CacheBytes int64
	// FetchBytes bounds the blocks that are being fetched or wait for it.
	FetchBytes int64
	// Fetches is how many blocks are fetched from stores at a time.
	Fetches int
	// FetchTimeout bounds the fetch of a block.
	FetchTimeout time.Duration
	// RequestBytes bounds the blocks that the requests being served need, each request at least as much as one payload takes.
	RequestBytes int64
	// RequestFetches is how many blocks one request loads at a time.
	RequestFetches int
	// AnswerBytes is where an answer is cut, at most 32 MiB.
	AnswerBytes int
	// RetryAfter is the hint given with refusals.
	RetryAfter time.Duration
}

// DefaultConfig returns the configuration that is used unless told otherwise.
func DefaultConfig() Config {
	return Config{
		CacheBytes:     256 << 20,
		FetchBytes:     512 << 20,
		Fetches:        64,
		FetchTimeout:   30 * time.Second,
		RequestBytes:   512 << 20,
		RequestFetches: 8,
		AnswerBytes:    maxAnswerBytes,
		RetryAfter:     200 * time.Millisecond,
	}
}

// Validate reports every field that is out of range, joined.
func (c *Config) Validate() error {
	var errs []error
	number := func(name string, v, least, most int64) {
		if v < least || v > most {
			errs = append(errs, fmt.Errorf("readproxy: %s is %d, it must be %d to %d", name, v, least, most))
		}
	}
	number("CacheBytes", c.CacheBytes, 0, 1<<50)
	number("FetchBytes", c.FetchBytes, largestBlock, 1<<50)
	number("Fetches", int64(c.Fetches), 1, 100_000)
	number("RequestBytes", c.RequestBytes, 1<<20, 1<<50)
	number("RequestFetches", int64(c.RequestFetches), 1, maxPointers)
	number("AnswerBytes", int64(c.AnswerBytes), 1, maxAnswerBytes)
	if c.FetchTimeout < time.Millisecond || c.FetchTimeout > time.Hour {
		errs = append(errs, fmt.Errorf("readproxy: FetchTimeout is %v, it must be 1ms to 1h", c.FetchTimeout))
	}
	if c.RetryAfter < 0 || c.RetryAfter > time.Hour {
		errs = append(errs, fmt.Errorf("readproxy: RetryAfter is %v, it must be 0 to 1h", c.RetryAfter))
	}
	return errors.Join(errs...)
}

// Categories is the view of categories.
type Categories interface {
	// Lookup returns a category from the local view. It is not changed.
	Lookup(name string) (*scribev1.Category, bool)
	// Resolve asks the control plane. Its error has REASON_UNKNOWN_CATEGORY when there is none.
	Resolve(ctx context.Context, name string) (*scribev1.Category, error)
}

// Deps are what the role works with. They outlive it.
type Deps struct {
	// Blobs returns the store of a region, "" for the local one, and an error for a region without one.
	Blobs func(region string) (blob.Store, error)
	// Categories is the view of categories.
	Categories Categories
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil keeps none. Close unregisters them.
	Registerer prometheus.Registerer
}

func (d *Deps) validate() error {
	var errs []error
	if d.Blobs == nil {
		errs = append(errs, errors.New("readproxy: Deps.Blobs is missing"))
	}
	if d.Categories == nil {
		errs = append(errs, errors.New("readproxy: Deps.Categories is missing"))
	}
	return errors.Join(errs...)
}
