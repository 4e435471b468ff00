package rpc

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON is the codec of calls in JSON, which people write. A field that does not exist is an error that names it and its line, where
// Connect's own codec would leave it out: a misspelled field must not count as one that was not given.
type strictJSON struct{ name string }

// jsonCodecs are the names under which Connect looks for the codec.
func jsonCodecs() connect.HandlerOption {
	return connect.WithHandlerOptions(connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}))
}

// Name implements connect.Codec.
func (c strictJSON) Name() string { return c.name }

var errNotMessage = errors.New("rpc: not a message of the protocol")

// Marshal implements connect.Codec.
func (strictJSON) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, errNotMessage
	}
	return protojson.MarshalOptions{}.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (strictJSON) Unmarshal(b []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return errNotMessage
	}
	if len(b) == 0 {
		return errors.New("the request is empty: send a JSON object, at least {}")
	}
	if err := protojson.Unmarshal(b, m); err != nil {
		// The library writes its prefix with one of two kinds of spaces, so that nobody relies on it.
		text := strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
		return fmt.Errorf("invalid JSON: %s", text)
	}
	return nil
}
