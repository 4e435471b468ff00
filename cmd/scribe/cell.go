package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// callTimeout bounds one call of a tool that a person waits for.
const callTimeout = 15 * time.Second

// callCell makes a call for a command, of which doing says what it does. Its error is for users.
func callCell[Req, Res any](ctx context.Context, server, doing string, call func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := call(ctx, req)
	if err != nil {
		return nil, callFailure(server, doing, err)
	}
	return res, nil
}

func controlClient(server string) rpc.ControlService {
	return rpc.NewControlClient(rpc.Default(), server)
}

func groupClient(server string) rpc.GroupService { return rpc.NewGroupClient(rpc.Default(), server) }

// getCategory asks for a category.
func getCategory(ctx context.Context, server, doing, name string) (*scribev1.Category, error) {
	res, err := callCell(ctx, server, doing, controlClient(server).GetCategory, &scribev1.GetCategoryRequest{Name: name})
	return res.GetCategory(), err
}

const defaultServer = "http://127.0.0.1:7420"

// serverFlag adds the flag for the address of the cell.
func serverFlag(cmd *cobra.Command) *string {
	addr := addressFlag(defaultServer)
	cmd.Flags().Var(&addr, "server", "address of the cell: a URL, host:port or unix:/path (SCRIBE_SERVER)")
	return (*string)(&addr)
}

// addressFlag is the address of a cell. An invalid one is a usage error, not an unavailable cell.
type addressFlag string

// String implements pflag.Value.
func (a *addressFlag) String() string { return string(*a) }

// Type implements pflag.Value.
func (a *addressFlag) Type() string { return "address" }

// Set implements pflag.Value.
func (a *addressFlag) Set(s string) error {
	s = strings.TrimSpace(s)
	scheme, rest, isURL := strings.Cut(s, "://")
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		isURL, rest = false, path
	} else if !isURL {
		rest = s
	}
	if isURL && scheme != "http" && scheme != "https" || strings.HasPrefix(s, "/") || strings.Trim(rest, "/") == "" {
		return errors.New("want http://host:port, host:port or unix:/path")
	}
	*a = addressFlag(s)
	return nil
}
