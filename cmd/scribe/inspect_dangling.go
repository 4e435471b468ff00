package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/retention"
	"scribe/storage/blob"
	"scribe/storage/metalog/remote"
)

func newInspectDangling() *cobra.Command {
	var f serverFlags
	var offline bool
	cmd := &cobra.Command{
		Use:   "dangling",
		Short: "Find pointers without a blob, and blobs without a pointer",
		Long: `Compare the pointers of all logs with all blobs, and show dangling pointers and blobs, as a JSON object per line:

  missing   a pointer refers to a missing blob: its messages are lost
  pointer   a log record is not a valid pointer, or can't be read
  orphan    no pointer refers to the blob, or ever will; retention deletes it
  expired   all pointers to the blob were trimmed; retention deletes it
  young     no pointer refers to the blob yet; its writer may still commit it
  unknown   the blob belongs to a history that the logs don't have: another cell's, or they were restored; retention keeps it
  damaged   no pointer refers to the blob, and its footer can't be read; retention keeps it

missing and pointer are damage, and set the exit code 1. The command only reads, and is safe while a server runs. It reads the logs of the
running cell at --server, or with --offline those of a stopped cell in the folder --data. --blobs gives the location of the blobs.`,
		Example: `  scribe inspect dangling --data ./scribe-data
  scribe inspect dangling --data ./scribe-data --offline
  scribe inspect dangling --server http://10.0.0.1:7420 --blobs s3 --s3-endpoint http://127.0.0.1:9000 --s3-bucket scribe`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	f.addFlags(cmd, "blobs", app.DefaultConfig())
	cmd.Flags().BoolVar(&offline, "offline", false, "read the logs of a stopped cell, in --data")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := f.configure(cmd)
		if err != nil {
			return err
		}
		inspect := func(url string) error {
			return withBlobs(cmd.Context(), c, func(s blob.Store) error {
				return inspectDangling(cmd.Context(), url, s, cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		}
		if offline {
			return withStoppedCell(cmd, c, inspect)
		}
		return inspect(*server)
	}
	return cmd
}

// withStoppedCell runs what looking into a data folder takes, and fn. To look must neither make a folder nor remove anything.
func withStoppedCell(cmd *cobra.Command, c app.Config, fn func(url string) error) error {
	if _, err := os.Stat(filepath.Join(c.Data, "metalog")); err != nil {
		return missingError("--data %s contains no metadata logs: metalog: %w", c.Data, app.WithoutPath(err))
	}
	c.Log.Level = "error"
	c.Roles = slices.DeleteFunc(slices.Clone(c.Roles), func(r app.Role) bool { return r == app.Retention || r == app.Sequencer })
	return withApp(cmd.Context(), c, cmd.ErrOrStderr(), fn)
}

type danglingLine struct {
	Kind     retention.FindingKind `json:"kind"`
	Blob     string                `json:"blob,omitempty"`
	Bytes    int64                 `json:"bytes,omitempty"`
	Category string                `json:"category,omitempty"`
	Shard    string                `json:"shard,omitempty"`
	LSN      uint64                `json:"lsn,omitempty"`
	Pointers int                   `json:"pointers,omitempty"`
	Error    string                `json:"error,omitempty"`
}

func inspectDangling(ctx context.Context, server string, store blob.Store, stdout, stderr io.Writer) (err error) {
	cell := discovery.New(rpc.Default(), server, nil)
	categories, err := everyCategory(ctx, cell.Control())
	if err != nil {
		return callFailure(server, "inspect dangling", err)
	}
	svc, err := cell.Metalog(ctx)
	if err != nil {
		return err
	}
	log := remote.NewClient(svc)
	defer func() { err = errors.Join(err, log.Close()) }()
	counts := map[retention.FindingKind]int{}
	result, err := retention.Audit(ctx, log, store, categories, func(f retention.Finding) error {
		counts[f.Kind]++
		line := danglingLine{Kind: f.Kind, Blob: f.Key, Bytes: f.Size, Category: f.Category, LSN: uint64(f.LSN), Pointers: f.Pointers}
		if f.Shard != 0 {
			line.Shard = f.Shard.String()
		}
		if f.Err != nil {
			line.Error = f.Err.Error()
		}
		return printLines(stdout, line)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%d pointers, %d blobs, %d bytes", result.Pointers, result.Blobs, result.Bytes)
	for _, kind := range []retention.FindingKind{
		retention.FindingMissing, retention.FindingPointer, retention.FindingOrphan, retention.FindingExpired, retention.FindingYoung,
		retention.FindingUnknown, retention.FindingDamaged,
	} {
		fmt.Fprintf(stderr, ", %d %s", counts[kind], kind)
	}
	fmt.Fprintf(stderr, "; boundary %s\n", timeOf(result.Boundary).Format(time.RFC3339))
	if counts[retention.FindingMissing]+counts[retention.FindingPointer] > 0 {
		return errDamaged
	}
	return nil
}

// everyCategory lists the categories that there are, and those that were deleted and are not collected yet.
func everyCategory(ctx context.Context, control rpc.ControlService) (all []retention.AuditCategory, err error) {
	for req := (&scribev1.ListCategoriesRequest{}); ; {
		res, err := control.ListCategories(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, c := range res.GetCategories() {
			all = append(all, retention.AuditCategory{ID: c.GetId(), Name: c.GetName()})
			req.After = c.GetName()
		}
		if !res.GetMore() {
			break
		}
	}
	for req := (&scribev1.ListDroppedRequest{}); ; {
		res, err := control.ListDropped(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, c := range res.GetCategories() {
			all = append(all, retention.AuditCategory{ID: c.GetId(), Name: c.GetName()})
			req.After = c.GetId()
		}
		if !res.GetMore() {
			return all, nil
		}
	}
}
