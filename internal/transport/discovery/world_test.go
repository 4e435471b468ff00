package discovery

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a cell of processes that talk over memory.
type world struct {
	t         *testing.T
	transport *rpc.Transport

	mu struct {
		sync.Mutex
		processes map[string]*process // by host
		silent    map[string]bool     // hosts that neither answer nor refuse
		members   []*scribev1.Member
		listedAt  int64 // what the cell's clock says
	}
}

// process is one of them. The functions are what its roles do; nil does nothing.
type process struct {
	rpc.ControlService // what is not implemented here is not called
	rpc.MetalogService
	world  *world
	host   string
	roles  []scribev1.Role
	server *rpc.Server
	status func(context.Context) error
	write  func(context.Context) error
	fetch  func(context.Context) error
	stream func(context.Context) error
	evicts bool // it sends its streams away, for this reason:
	reason scribev1.Reason
	most   int  // payloads in an answer; 0 = all
	orders bool // it keeps the order of requests
	stops  bool // it is about to stop

	mu struct {
		sync.Mutex
		calls  map[string]int
		blobs  []string
		ack    scribev1.AckLevel // of the last write
		others bool              // it is of another cell
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	w.mu.processes = make(map[string]*process)
	w.mu.silent = make(map[string]bool)
	w.transport = rpc.NewTransport(w.dial)
	t.Cleanup(func() {
		w.transport.Close()
		for _, p := range slices.Collect(maps.Values(w.mu.processes)) {
			p.stop()
		}
	})
	return w
}

func (w *world) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	p, silent := w.mu.processes[host], w.mu.silent[host]
	w.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if p == nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused by " + host)}
	}
	l := memhttp.Listen()
	p.server.Serve(l)
	return l.Dial(ctx, network, addr)
}

// start adds a process that offers roles, and a member of that name; it answers for the control plane.
func (w *world) start(host string, roles ...scribev1.Role) *process {
	w.t.Helper()
	p := &process{world: w, host: host, roles: roles}
	p.mu.calls = make(map[string]int)
	mux := http.NewServeMux()
	s := &rpc.Services{Control: p}
	for _, r := range roles {
		switch r {
		case scribev1.Role_ROLE_WRITEPROXY, scribev1.Role_ROLE_SCRIBED:
			s.Write = p
		case scribev1.Role_ROLE_READPROXY:
			s.ReadProxy = p
		case scribev1.Role_ROLE_READSTREAM:
			s.ReadStream = p
		case scribev1.Role_ROLE_METALOG:
			s.Metalog = p.MetalogService
		default:
		}
	}
	s.Register(mux)
	p.server = rpc.NewServer(mux, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.processes[host] = p
	w.mu.members = append(w.mu.members, &scribev1.Member{Id: "id-" + host, Url: url(host), Roles: roles})
	return p
}

func url(host string) string { return "http://" + host + ":7420" }

// cell is a client's view through one of the hosts.
func (w *world) cell(host string) *Cell { return New(w.transport, url(host), nil) }

// leave removes a member that still runs.
func (w *world) leave(host string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.members = slices.DeleteFunc(w.mu.members, func(m *scribev1.Member) bool { return m.GetUrl() == url(host) })
}

func (w *world) silence(host string, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.silent[host] = silent
}

// stop ends a process: connections to it break, and new ones are refused. It stays a member. Its clients have noticed when it returns: else the
// next call may go to a connection that is over, and nobody knows what became of it.
func (p *process) stop() {
	p.world.mu.Lock()
	if p.world.mu.processes[p.host] == p {
		delete(p.world.mu.processes, p.host)
	}
	p.world.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.server.Close(ctx) // it was told not to wait
	synctest.Wait()
}

func (p *process) count(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.calls[what]++
}

// took returns how many calls came since it was asked last.
func (p *process) took(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.mu.calls[what]
	p.mu.calls[what] = 0
	return n
}

func do(ctx context.Context, f func(context.Context) error) error {
	if f == nil {
		return nil
	}
	return f(ctx)
}

func (p *process) GetStatus(ctx context.Context, _ *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	p.count("status")
	if err := do(ctx, p.status); err != nil {
		return nil, err
	}
	p.mu.Lock()
	others := p.mu.others
	p.mu.Unlock()
	if others {
		return &scribev1.GetStatusResponse{Roles: p.roles, Members: []*scribev1.Member{{Id: "of-others", Url: url(p.host), Roles: p.roles}}}, nil
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return &scribev1.GetStatusResponse{Roles: p.roles, Members: slices.Clone(p.world.mu.members), MembersAt: p.world.mu.listedAt, Stopping: p.stops}, nil
}

func (p *process) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	p.count("write")
	p.mu.Lock()
	p.mu.ack = req.GetAck()
	p.mu.Unlock()
	return &scribev1.WriteResponse{Ordered: p.orders}, do(ctx, p.write)
}

func (p *process) Publish(ctx context.Context, req *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	p.count("publish")
	p.mu.Lock()
	p.mu.ack = req.GetAck()
	p.mu.Unlock()
	return &scribev1.PublishResponse{}, do(ctx, p.write)
}

func (p *process) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	p.count("fetch")
	if req.GetSole() {
		p.count("sole")
	}
	p.mu.Lock()
	for _, b := range req.GetPointers() {
		p.mu.blobs = append(p.mu.blobs, string(b))
	}
	p.mu.Unlock()
	if err := do(ctx, p.fetch); err != nil {
		return nil, err
	}
	res := &scribev1.FetchResponse{}
	for i, b := range req.GetPointers() {
		if p.most > 0 && i == p.most {
			break
		}
		res.Payloads = append(res.Payloads, &scribev1.Payload{Data: slices.Clone(b)})
	}
	return res, nil
}

func (p *process) Bounds(ctx context.Context, _ *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error) {
	p.count("bounds")
	return &scribev1.BoundsResponse{}, do(ctx, p.stream)
}

func (p *process) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	p.count("stream")
	if _, err := recv(ctx); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := do(ctx, p.stream); err != nil {
		return err
	}
	if p.evicts {
		return send(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Evicted{
			Evicted: &scribev1.StreamEvicted{Reason: p.reason, Message: "it goes on elsewhere"},
		}})
	}
	return send(&scribev1.StreamResponse{})
}

// The calls of the tests.

func write(ctx context.Context, c *Cell) error {
	_, err := c.Write().Write(ctx, &scribev1.WriteRequest{Frames: []byte("frames")})
	return err
}

func fetch(ctx context.Context, c *Cell, pointer []byte) error {
	_, err := c.ReadProxy().Fetch(ctx, &scribev1.FetchRequest{Pointers: [][]byte{pointer}})
	return err
}

func stream(ctx context.Context, c *Cell) error {
	return c.ReadStream().Stream(ctx, func(context.Context) (*scribev1.StreamRequest, error) { return nil, io.EOF },
		func(*scribev1.StreamResponse) error { return nil })
}
