package rpc

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

type metalogClient struct {
	scribev1connect.MetalogServiceClient
	streams scribev1connect.MetalogServiceClient
}

// Subscribe implements MetalogService.
func (c metalogClient) Subscribe(ctx context.Context, req *scribev1.SubscribeRequest, send func(*scribev1.SubscribeResponse) error) error {
	return forwardStream(ctx, req, c.streams.Subscribe, send)
}

// WatchShards implements MetalogService.
func (c metalogClient) WatchShards(ctx context.Context, req *scribev1.WatchShardsRequest, send func(*scribev1.WatchShardsResponse) error) error {
	return forwardStream(ctx, req, c.streams.WatchShards, send)
}

type controlClient struct {
	scribev1connect.ControlServiceClient
	streams scribev1connect.ControlServiceClient
}

// WatchCategories implements ControlService.
func (c controlClient) WatchCategories(ctx context.Context, req *scribev1.WatchCategoriesRequest, send func(*scribev1.WatchCategoriesResponse) error) error {
	return forwardStream(ctx, req, c.streams.WatchCategories, send)
}

// WatchMembers implements ControlService.
func (c controlClient) WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error {
	return forwardStream(ctx, req, c.streams.WatchMembers, send)
}

type accessClient struct {
	scribev1connect.AccessServiceClient
	streams scribev1connect.AccessServiceClient
}

// WatchAccess implements AccessService.
func (c accessClient) WatchAccess(ctx context.Context, req *scribev1.WatchAccessRequest, send func(*scribev1.WatchAccessResponse) error) error {
	return forwardStream(ctx, req, c.streams.WatchAccess, send)
}

// streamBroke is the reason for a broken stream: opening it again loses nothing.
const streamBroke = scribev1.Reason_REASON_NO_BACKEND

// forwardStream passes the messages of a server's stream to send. An error of send ends the stream and is returned unchanged.
func forwardStream[Req, Res any](ctx context.Context, req *Req, open func(context.Context, *Req) (*connect.ServerStreamForClient[Res], error), send func(*Res) error) error {
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := open(call, req)
	if err != nil {
		return clientError(ctx, err, streamBroke)
	}
	defer func() {
		cancel()      // ends only this stream: the connection is shared
		_ = s.Close() // the stream has ended, or its end is of no interest
	}()
	for s.Receive() {
		if err := send(s.Msg()); err != nil {
			return err
		}
	}
	return clientError(ctx, s.Err(), streamBroke)
}

type readStreamClient struct {
	scribev1connect.ReadStreamServiceClient
	streams scribev1connect.ReadStreamServiceClient
}

// Stream implements ReadStreamService.
func (c readStreamClient) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.streams.Stream(call)
	if err != nil {
		return clientError(ctx, err, streamBroke)
	}
	pumped := make(chan error, 1)
	go func() {
		err := sendSteps(call, s, recv)
		if err != nil {
			cancel() // ends Receive
		}
		pumped <- err
	}()
	sendErr, streamErr := receiveAll(s, send)
	cancel() // ends recv, and a Send that waits for the server
	recvErr := <-pumped
	_ = s.CloseResponse() // the stream has ended, or its end is of no interest
	switch {
	case sendErr != nil:
		return sendErr
	case recvErr != nil:
		return recvErr
	default:
		return clientError(ctx, streamErr, streamBroke)
	}
}

type clientStream = connect.BidiStreamForClientSimple[scribev1.StreamRequest, scribev1.StreamResponse]

// receiveAll passes the server's steps to send until either fails. The end of the stream is not an error.
func receiveAll(s *clientStream, send func(*scribev1.StreamResponse) error) (sendErr, streamErr error) {
	for {
		res, err := s.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return nil, err
		}
		if err := send(res); err != nil {
			return err, nil
		}
	}
}

// sendSteps sends the caller's steps until there are no more, or the stream ends. It returns only errors of recv itself: Receive
// returns those of the stream.
func sendSteps(ctx context.Context, s *clientStream, recv func(context.Context) (*scribev1.StreamRequest, error)) error {
	// Receive returns the error of a broken stream. The transport notices the end of a context only when it does not wait for
	// more of the request.
	defer func() { _ = s.CloseRequest() }()
	for {
		req, err := recv(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && ctx.Err() != nil:
			return nil // the stream has ended; Receive returns the reason
		case err != nil:
			return err
		}
		if err := s.Send(req); err != nil {
			return sendFailed(err)
		}
	}
}

// sendFailed distinguishes a step that could not be sent at all, which Receive would not report, from a broken stream.
func sendFailed(err error) error {
	if connect.CodeOf(err) == connect.CodeResourceExhausted {
		return Errorf(scribev1.Reason_REASON_TOO_LARGE, "%w: send less at once", err)
	}
	return nil
}
