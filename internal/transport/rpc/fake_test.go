package rpc_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	scribev1 "scribe/proto/scribe/v1"
)

// fake implements every service: unary calls go to unary, streams from the server to stream, the other one to bidi. What is nil
// answers with nothing.
type fake struct {
	unary  func(ctx context.Context, req proto.Message) (proto.Message, error)
	stream func(ctx context.Context, req proto.Message, send func(proto.Message) error) error
	bidi   func(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error
}

func answer[Res any](ctx context.Context, f *fake, req proto.Message) (*Res, error) {
	if f.unary == nil {
		return new(Res), nil
	}
	res, err := f.unary(ctx, req)
	if err != nil {
		return nil, err
	}
	if res, ok := any(res).(*Res); ok {
		return res, nil
	}
	return new(Res), nil
}

func feed[Res any, P interface {
	*Res
	proto.Message
}](ctx context.Context, f *fake, req proto.Message, send func(*Res) error) error {
	if f.stream == nil {
		return send(new(Res))
	}
	return f.stream(ctx, req, func(m proto.Message) error {
		if res, ok := m.(P); ok {
			return send(res)
		}
		return send(new(Res))
	})
}

func (f *fake) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	return answer[scribev1.WriteResponse](ctx, f, req)
}

func (f *fake) Publish(ctx context.Context, req *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	return answer[scribev1.PublishResponse](ctx, f, req)
}

func (f *fake) Submit(ctx context.Context, req *scribev1.SubmitRequest) (*scribev1.SubmitResponse, error) {
	return answer[scribev1.SubmitResponse](ctx, f, req)
}

func (f *fake) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	return answer[scribev1.FetchResponse](ctx, f, req)
}

func (f *fake) Open(ctx context.Context, req *scribev1.OpenRequest) (*scribev1.OpenResponse, error) {
	return answer[scribev1.OpenResponse](ctx, f, req)
}

func (f *fake) Append(ctx context.Context, req *scribev1.AppendRequest) (*scribev1.AppendResponse, error) {
	return answer[scribev1.AppendResponse](ctx, f, req)
}

func (f *fake) Read(ctx context.Context, req *scribev1.ReadRequest) (*scribev1.ReadResponse, error) {
	return answer[scribev1.ReadResponse](ctx, f, req)
}

func (f *fake) Tail(ctx context.Context, req *scribev1.TailRequest) (*scribev1.TailResponse, error) {
	return answer[scribev1.TailResponse](ctx, f, req)
}

func (f *fake) Subscribe(ctx context.Context, req *scribev1.SubscribeRequest, send func(*scribev1.SubscribeResponse) error) error {
	return feed(ctx, f, req, send)
}

func (f *fake) Seek(ctx context.Context, req *scribev1.SeekRequest) (*scribev1.SeekResponse, error) {
	return answer[scribev1.SeekResponse](ctx, f, req)
}

func (f *fake) Trim(ctx context.Context, req *scribev1.TrimRequest) (*scribev1.TrimResponse, error) {
	return answer[scribev1.TrimResponse](ctx, f, req)
}

func (f *fake) Seal(ctx context.Context, req *scribev1.SealRequest) (*scribev1.SealResponse, error) {
	return answer[scribev1.SealResponse](ctx, f, req)
}

func (f *fake) Retire(ctx context.Context, req *scribev1.RetireRequest) (*scribev1.RetireResponse, error) {
	return answer[scribev1.RetireResponse](ctx, f, req)
}

func (f *fake) ListShards(ctx context.Context, req *scribev1.ListShardsRequest) (*scribev1.ListShardsResponse, error) {
	return answer[scribev1.ListShardsResponse](ctx, f, req)
}

func (f *fake) WatchShards(ctx context.Context, req *scribev1.WatchShardsRequest, send func(*scribev1.WatchShardsResponse) error) error {
	return feed(ctx, f, req, send)
}

func (f *fake) Sequences(ctx context.Context, req *scribev1.SequencesRequest) (*scribev1.SequencesResponse, error) {
	return answer[scribev1.SequencesResponse](ctx, f, req)
}

func (f *fake) AdvanceBoundary(ctx context.Context, req *scribev1.AdvanceBoundaryRequest) (*scribev1.AdvanceBoundaryResponse, error) {
	return answer[scribev1.AdvanceBoundaryResponse](ctx, f, req)
}

func (f *fake) CreateCategory(ctx context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error) {
	return answer[scribev1.CreateCategoryResponse](ctx, f, req)
}

func (f *fake) GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	return answer[scribev1.GetCategoryResponse](ctx, f, req)
}

func (f *fake) ListCategories(ctx context.Context, req *scribev1.ListCategoriesRequest) (*scribev1.ListCategoriesResponse, error) {
	return answer[scribev1.ListCategoriesResponse](ctx, f, req)
}

func (f *fake) UpdateCategory(ctx context.Context, req *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error) {
	return answer[scribev1.UpdateCategoryResponse](ctx, f, req)
}

func (f *fake) DeleteCategory(ctx context.Context, req *scribev1.DeleteCategoryRequest) (*scribev1.DeleteCategoryResponse, error) {
	return answer[scribev1.DeleteCategoryResponse](ctx, f, req)
}

func (f *fake) WatchCategories(ctx context.Context, req *scribev1.WatchCategoriesRequest, send func(*scribev1.WatchCategoriesResponse) error) error {
	return feed(ctx, f, req, send)
}

func (f *fake) Join(ctx context.Context, req *scribev1.JoinRequest) (*scribev1.JoinResponse, error) {
	return answer[scribev1.JoinResponse](ctx, f, req)
}

func (f *fake) Heartbeat(ctx context.Context, req *scribev1.HeartbeatRequest) (*scribev1.HeartbeatResponse, error) {
	return answer[scribev1.HeartbeatResponse](ctx, f, req)
}

func (f *fake) Leave(ctx context.Context, req *scribev1.LeaveRequest) (*scribev1.LeaveResponse, error) {
	return answer[scribev1.LeaveResponse](ctx, f, req)
}

func (f *fake) ListMembers(ctx context.Context, req *scribev1.ListMembersRequest) (*scribev1.ListMembersResponse, error) {
	return answer[scribev1.ListMembersResponse](ctx, f, req)
}

func (f *fake) WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error {
	return feed(ctx, f, req, send)
}

func (f *fake) GetStatus(ctx context.Context, req *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	return answer[scribev1.GetStatusResponse](ctx, f, req)
}

func (f *fake) Bounds(ctx context.Context, req *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error) {
	return answer[scribev1.BoundsResponse](ctx, f, req)
}

func (f *fake) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	if f.bidi == nil {
		return nil
	}
	return f.bidi(ctx, recv, send)
}

// services are all of them.
func (f *fake) services() *rpc.Services {
	return &rpc.Services{Write: f, Batch: f, Metalog: f, ReadStream: f, ReadProxy: f, Views: f, Push: f, Control: f}
}

// endpoint is a running server and a way to it.
type endpoint struct {
	server    *rpc.Server
	transport *rpc.Transport
	url       string
	dial      rpc.Dial // over memory only
}

// networks are what every test of the wire runs over.
var networks = []string{"memory", "tcp", "unix", "second address"}

// start serves until the test ends.
func start(t *testing.T, network string, s *rpc.Services) *endpoint {
	t.Helper()
	mux := http.NewServeMux()
	s.Register(mux)
	return startHandler(t, network, mux)
}

func startHandler(t *testing.T, network string, h http.Handler) *endpoint {
	t.Helper()
	e := &endpoint{server: rpc.NewServer(h, slog.New(slog.DiscardHandler))}
	var l net.Listener
	switch network {
	case "memory":
		ml := memhttp.Listen()
		l, e.dial, e.transport, e.url = ml, ml.Dial, rpc.NewTransport(ml.Dial), "memory"
	case "second address":
		ml := memhttp.Listen()
		l, e.url = ml, "gone,memory"
		e.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == "gone:7420" {
				return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
			}
			return ml.Dial(ctx, network, addr)
		}
		e.transport = rpc.NewTransport(e.dial)
	case "tcp":
		l = listen(t, "tcp", "127.0.0.1:0")
		e.transport, e.url = rpc.NewTransport(nil), l.Addr().String()
	case "unix":
		path := filepath.Join(t.TempDir(), "Socket with Capitals")
		l = listen(t, "unix", path)
		e.transport, e.url = rpc.NewTransport(nil), "unix:"+path
	}
	e.server.Serve(l)
	t.Cleanup(func() {
		e.transport.Close()
		if err := e.server.Close(context.Background()); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	return e
}

func listen(t *testing.T, network, addr string) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), network, addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// everywhere runs a test over each network.
func everywhere(t *testing.T, f *fake, test func(t *testing.T, e *endpoint)) {
	t.Helper()
	for _, network := range networks {
		t.Run(network, func(t *testing.T) { test(t, start(t, network, f.services())) })
	}
}

func (e *endpoint) write() rpc.WriteService     { return rpc.NewWriteClient(e.transport, e.url) }
func (e *endpoint) batch() rpc.BatchService     { return rpc.NewBatchClient(e.transport, e.url) }
func (e *endpoint) metalog() rpc.MetalogService { return rpc.NewMetalogClient(e.transport, e.url) }
func (e *endpoint) readStream() rpc.ReadStreamService {
	return rpc.NewReadStreamClient(e.transport, e.url)
}

func (e *endpoint) readProxy() rpc.ReadProxyService {
	return rpc.NewReadProxyClient(e.transport, e.url)
}
func (e *endpoint) control() rpc.ControlService { return rpc.NewControlClient(e.transport, e.url) }

// noSteps is a recv of a client that has nothing to say.
func noSteps(ctx context.Context) (*scribev1.StreamRequest, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (f *fake) RemoveShards(ctx context.Context, req *scribev1.RemoveShardsRequest) (*scribev1.RemoveShardsResponse, error) {
	return answer[scribev1.RemoveShardsResponse](ctx, f, req)
}

func (f *fake) Erase(ctx context.Context, req *scribev1.EraseRequest) (*scribev1.EraseResponse, error) {
	return answer[scribev1.EraseResponse](ctx, f, req)
}

func (f *fake) ListDropped(ctx context.Context, req *scribev1.ListDroppedRequest) (*scribev1.ListDroppedResponse, error) {
	return answer[scribev1.ListDroppedResponse](ctx, f, req)
}

func (f *fake) ForgetDropped(ctx context.Context, req *scribev1.ForgetDroppedRequest) (*scribev1.ForgetDroppedResponse, error) {
	return answer[scribev1.ForgetDroppedResponse](ctx, f, req)
}

func (f *fake) ShareQuotas(ctx context.Context, req *scribev1.ShareQuotasRequest) (*scribev1.ShareQuotasResponse, error) {
	return answer[scribev1.ShareQuotasResponse](ctx, f, req)
}

func (f *fake) SetTenantQuota(ctx context.Context, req *scribev1.SetTenantQuotaRequest) (*scribev1.SetTenantQuotaResponse, error) {
	return answer[scribev1.SetTenantQuotaResponse](ctx, f, req)
}

func (f *fake) RemoveTenantQuota(ctx context.Context, req *scribev1.RemoveTenantQuotaRequest) (*scribev1.RemoveTenantQuotaResponse, error) {
	return answer[scribev1.RemoveTenantQuotaResponse](ctx, f, req)
}

func (f *fake) ListTenantQuotas(ctx context.Context, req *scribev1.ListTenantQuotasRequest) (*scribev1.ListTenantQuotasResponse, error) {
	return answer[scribev1.ListTenantQuotasResponse](ctx, f, req)
}

func (f *fake) HoldPins(ctx context.Context, req *scribev1.HoldPinsRequest) (*scribev1.HoldPinsResponse, error) {
	return answer[scribev1.HoldPinsResponse](ctx, f, req)
}

func (f *fake) ListPins(ctx context.Context, req *scribev1.ListPinsRequest) (*scribev1.ListPinsResponse, error) {
	return answer[scribev1.ListPinsResponse](ctx, f, req)
}

func (f *fake) Annotate(ctx context.Context, req *scribev1.AnnotateRequest) (*scribev1.AnnotateResponse, error) {
	return answer[scribev1.AnnotateResponse](ctx, f, req)
}

func (f *fake) Annotations(ctx context.Context, req *scribev1.AnnotationsRequest) (*scribev1.AnnotationsResponse, error) {
	return answer[scribev1.AnnotationsResponse](ctx, f, req)
}

func (f *fake) Push(ctx context.Context, req *scribev1.PushRequest) (*scribev1.PushResponse, error) {
	return answer[scribev1.PushResponse](ctx, f, req)
}

func (f *fake) Views(ctx context.Context, req *scribev1.ViewsRequest) (*scribev1.ViewsResponse, error) {
	return answer[scribev1.ViewsResponse](ctx, f, req)
}
