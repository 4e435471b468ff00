package rpc

import (
	"context"
	"io"

	"connectrpc.com/connect"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

// A client is created once for a URL and used by many calls; creating one costs more than a small call. Wherever a base URL is asked
// for, the text of an [AddressList] stands for several: see setClient.

// clientOptions bound answers and request them uncompressed: payloads are compressed already, and the rest is small.
func clientOptions() connect.ClientOption {
	return connect.WithClientOptions(
		connect.WithReadMaxBytes(MaxMessageBytes),
		connect.WithSendMaxBytes(MaxMessageBytes),
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithInterceptors(errorMapper{}),
	)
}

// NewWriteClient calls the WriteService at a base URL.
func NewWriteClient(t *Transport, url string) WriteService {
	to := t.endpointOf(url)
	return writeClient{
		WriteServiceClient: scribev1connect.NewWriteServiceClient(to.unary, to.base, clientOptions()),
		write:              newBulkClient(to, url, scribev1connect.WriteServiceWriteProcedure),
	}
}

// NewBatchClient calls the BatchService at a base URL.
func NewBatchClient(t *Transport, url string) BatchService {
	to := t.endpointOf(url)
	return batchClient{newBulkClient(to, url, scribev1connect.BatchServiceSubmitProcedure)}
}

// NewReadProxyClient calls the ReadProxyService at a base URL.
func NewReadProxyClient(t *Transport, url string) ReadProxyService {
	to := t.endpointOf(url)
	return readProxyClient{newBulkClient(to, url, scribev1connect.ReadProxyServiceFetchProcedure)}
}

// NewViewClient calls the ViewService at a base URL.
func NewViewClient(t *Transport, url string) ViewService {
	to := t.endpointOf(url)
	return scribev1connect.NewViewServiceClient(to.unary, to.base, clientOptions())
}

// NewPushClient calls the PushService at a base URL.
func NewPushClient(t *Transport, url string) PushService {
	to := t.endpointOf(url)
	return scribev1connect.NewPushServiceClient(to.unary, to.base, clientOptions())
}

// NewReadStreamClient calls the ReadStreamService at a base URL.
func NewReadStreamClient(t *Transport, url string) ReadStreamService {
	to := t.endpointOf(url)
	return readStreamClient{
		ReadStreamServiceClient: scribev1connect.NewReadStreamServiceClient(to.unary, to.base, clientOptions()),
		streams:                 scribev1connect.NewReadStreamServiceClient(to.stream, to.base, clientOptions()),
	}
}

// NewMetalogClient calls the MetalogService at a base URL.
func NewMetalogClient(t *Transport, url string) MetalogService {
	to := t.endpointOf(url)
	return metalogClient{
		MetalogServiceClient: scribev1connect.NewMetalogServiceClient(to.unary, to.base, clientOptions()),
		streams:              scribev1connect.NewMetalogServiceClient(to.stream, to.base, clientOptions()),
	}
}

// NewControlClient calls the ControlService at a base URL.
func NewControlClient(t *Transport, url string) ControlService {
	to, opts := t.endpointOf(url), connect.WithClientOptions(clientOptions(), connect.WithInterceptors(forwardedMark{}))
	return controlClient{
		ControlServiceClient: scribev1connect.NewControlServiceClient(to.unary, to.base, opts),
		streams:              scribev1connect.NewControlServiceClient(to.stream, to.base, opts),
	}
}

// NewGroupClient calls the GroupService at a base URL.
func NewGroupClient(t *Transport, url string) GroupService {
	to := t.endpointOf(url)
	return scribev1connect.NewGroupServiceClient(to.unary, to.base, clientOptions())
}

// NewProcessClient calls the ProcessService at a base URL.
func NewProcessClient(t *Transport, url string) ProcessService {
	to := t.endpointOf(url)
	return scribev1connect.NewProcessServiceClient(to.unary, to.base, clientOptions())
}

// NewAccessClient calls the AccessService at a base URL.
func NewAccessClient(t *Transport, url string) AccessService {
	to := t.endpointOf(url)
	return accessClient{
		AccessServiceClient: scribev1connect.NewAccessServiceClient(to.unary, to.base, clientOptions()),
		streams:             scribev1connect.NewAccessServiceClient(to.stream, to.base, clientOptions()),
	}
}

// NewBackupClient calls the BackupService at a base URL.
func NewBackupClient(t *Transport, url string) BackupService {
	to := t.endpointOf(url)
	return scribev1connect.NewBackupServiceClient(to.unary, to.base, clientOptions())
}

// NewNodeClient calls the NodeService at a base URL.
func NewNodeClient(t *Transport, url string) NodeService {
	to := t.endpointOf(url)
	return scribev1connect.NewNodeServiceClient(to.unary, to.base, clientOptions())
}

type writeClient struct {
	scribev1connect.WriteServiceClient
	write *bulkClient
}

// Write implements WriteService.
func (c writeClient) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	return c.WritePieces(ctx, req, req.GetFrames())
}

// WritePieces implements PieceWriter.
func (c writeClient) WritePieces(ctx context.Context, req *scribev1.WriteRequest, frames ...[]byte) (*scribev1.WriteResponse, error) {
	res := new(scribev1.WriteResponse)
	if err := c.write.callBulk(ctx, encodeFrames(req, frames...), decodeInto(res)); err != nil {
		return nil, err
	}
	return res, nil
}

type batchClient struct{ submit *bulkClient }

// Submit implements BatchService.
func (c batchClient) Submit(ctx context.Context, req *scribev1.SubmitRequest) (*scribev1.SubmitResponse, error) {
	res := new(scribev1.SubmitResponse)
	if err := c.submit.callBulk(ctx, encodeFrames(req, req.GetFrames()), decodeInto(res)); err != nil {
		return nil, err
	}
	return res, nil
}

type readProxyClient struct{ fetch *bulkClient }

// Fetch implements ReadProxyService.
func (c readProxyClient) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	body, err := encodeMessage(req)
	if err != nil {
		return nil, Errorf(scribev1.Reason_REASON_INVALID, "encode the request: %w", err)
	}
	var res *scribev1.FetchResponse
	b := bulkRequest{pieces: body, size: int64(len(body[0]))}
	err = c.fetch.callBulk(ctx, b, func(r io.Reader, size int64) (err error) {
		res, err = decodeFetched(r, size, len(req.GetPointers()))
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
