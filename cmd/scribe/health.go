package main

import (
	"context"
	"errors"
	"fmt"

	"scribe/cmd/scribe/survey"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// examineCell asks a process for the state of its cell, and all members how they are.
func examineCell(ctx context.Context, server string) (*survey.CellHealth, error) {
	st, err := callCell(ctx, server, "status", controlClient(server).GetStatus, &scribev1.GetStatusRequest{})
	if err != nil {
		return nil, err
	}
	return survey.ExamineCell(ctx, rpc.Default(), server, st), nil
}

// awayError is the command's error where no control plane was reached; else nil.
func awayError(server string, c *survey.CellHealth) error {
	if !c.Away {
		return nil
	}
	return &codedError{code: exitUnavailable, err: fmt.Errorf("%s can't reach its control plane: members and categories are those known last", server)}
}

var errUnhealthy = errors.New("the cell is not healthy")
