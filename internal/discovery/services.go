package discovery

import (
	"context"

	"github.com/cespare/xxhash/v2"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Write returns a WriteService over the cell's write proxies, or the host's agent when that is the given address. It does not
// repeat a request whose outcome is unknown: that is the producer's decision.
func (c *Cell) Write() rpc.WriteService { return writeService{c} }

// ReadStream returns a ReadStreamService over the cell's instances; a stream that breaks is not reopened here.
func (c *Cell) ReadStream() rpc.ReadStreamService { return readStreamService{c} }

// ReadProxy returns a ReadProxyService over the cell's instances. A request goes to the instance that prefers the blob of its
// first pointer, so that its cache holds what other consumers ask for.
func (c *Cell) ReadProxy() rpc.ReadProxyService { return readProxyService{c} }

type writeService struct{ c *Cell }

// Write implements rpc.WriteService.
func (s writeService) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	return try(ctx, s.c, s.role(ctx), 0, func(url string) (*scribev1.WriteResponse, error) {
		return rpc.NewWriteClient(s.c.transport, url).Write(ctx, req)
	})
}

// Publish implements rpc.WriteService.
func (s writeService) Publish(ctx context.Context, req *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	return try(ctx, s.c, s.role(ctx), 0, func(url string) (*scribev1.PublishResponse, error) {
		return rpc.NewWriteClient(s.c.transport, url).Publish(ctx, req)
	})
}

// role is the agent's when the given address is an agent, for then the user wants its buffer; else the write proxies'. Agents of
// other hosts are never used.
func (s writeService) role(ctx context.Context) scribev1.Role {
	if err := s.c.refresh(ctx, scribev1.Role_ROLE_WRITEPROXY); err != nil {
		return scribev1.Role_ROLE_WRITEPROXY // pick reports it
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if in := s.c.mu.roles[scribev1.Role_ROLE_SCRIBED]; in != nil && len(in.urls) == 1 && in.urls[0] == s.c.server {
		return scribev1.Role_ROLE_SCRIBED
	}
	return scribev1.Role_ROLE_WRITEPROXY
}

type readStreamService struct{ c *Cell }

// Stream implements rpc.ReadStreamService.
func (s readStreamService) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	urls, err := s.c.pick(ctx, scribev1.Role_ROLE_READSTREAM, 0)
	if err != nil {
		return err
	}
	err = rpc.NewReadStreamClient(s.c.transport, urls[0]).Stream(ctx, recv, send)
	if err != nil && elsewhere(err) {
		s.c.fail(scribev1.Role_ROLE_READSTREAM, urls[0])
	}
	return err
}

type readProxyService struct{ c *Cell }

// Fetch implements rpc.ReadProxyService.
func (s readProxyService) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	key := uint64(1)
	if p := req.GetPointers(); len(p) > 0 {
		// The blob's id stands near the beginning of a pointer; equal blobs give equal keys without decoding it.
		key = xxhash.Sum64(p[0][:min(len(p[0]), blobPrefix)]) | 1
	}
	return try(ctx, s.c, scribev1.Role_ROLE_READPROXY, key, func(url string) (*scribev1.FetchResponse, error) {
		return rpc.NewReadProxyClient(s.c.transport, url).Fetch(ctx, req)
	})
}

// blobPrefix is how many bytes of a pointer name its blob: the version and the id (docs/format/pointer.md).
const blobPrefix = 17
