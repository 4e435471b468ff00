package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"scribe/internal/checkpoint"
	"scribe/internal/record"
	"scribe/internal/rpc"
	"scribe/internal/units"
	scribev1 "scribe/proto/scribe/v1"
)

func newGroup() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "List, describe, reset and delete consumer groups",
		Long: `List, describe, reset and delete consumer groups.

The members of a group share a category: each message goes to one of them. A group is created by its first member, for example

  scribe tail access --group workers

and is there until it is deleted, with the place up to which its members have committed, whether it has members or not. It divides the
category into buckets of pointers, so more members than the category has shards have something to do.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGroupList(), newGroupDescribe(), newGroupReset(), newGroupDelete())
	return cmd
}

func newGroupList() *cobra.Command {
	var prefix, category string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List groups by name",
		Example: `  scribe group list
  scribe group list --category access --json`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	cmd.Flags().StringVar(&prefix, "prefix", "", "only names that begin so")
	cmd.Flags().StringVar(&category, "category", "", "only groups that read this category")
	cmd.Flags().BoolVar(&asJSON, "json", false, "a JSON object a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		groups := rpc.NewGroupClient(rpc.Default(), *server)
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		if !asJSON {
			fmt.Fprintln(w, "NAME\tCATEGORY\tMEMBERS\tSHARING\tBUCKETS\tCREATED")
		}
		for after := ""; ; {
			ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
			res, err := groups.ListGroups(ctx, &scribev1.ListGroupsRequest{Prefix: prefix, Category: category, After: after})
			cancel()
			if err != nil {
				return called(*server, "list groups", err)
			}
			for _, g := range res.GetGroups() {
				if asJSON {
					if err := printProto(cmd.OutOrStdout(), g, ""); err != nil {
						return err
					}
					continue
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\n", g.GetName(), g.GetCategory(), g.GetMembers(), sharingName(g.GetSharing()), g.GetBuckets(), microTime(g.GetCreatedAt()))
			}
			if after = res.GetNext(); !res.GetMore() {
				return w.Flush()
			}
		}
	}
	return cmd
}

func newGroupDescribe() *cobra.Command {
	var asJSON, buckets bool
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Show who reads what, how far the group is, and how many members it should have",
		Long: `Show who reads what, how far the group is, and how many members it should have.

What waits is told in pointers, each a payload of up to about 2 MB, in bytes as far as members have told how large payloads are, and in time:
how long ago the oldest message that is not committed was persisted. The recommendation rests on what is written to the category, on what
waits, and on how busy the members are.`,
		Example: `  scribe group describe workers
  scribe group describe workers --buckets
  scribe group describe workers --json | jq .recommendedMembers`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.Flags().BoolVar(&buckets, "buckets", false, "also each bucket and each shard")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as one JSON object, buckets and shards included")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		req := &scribev1.DescribeGroupRequest{Group: args[0], Brief: !buckets && !asJSON}
		res, err := rpc.NewGroupClient(rpc.Default(), *server).DescribeGroup(ctx, req)
		switch {
		case err != nil:
			return called(*server, "describe group "+args[0], err)
		case asJSON:
			return printProto(cmd.OutOrStdout(), res, "  ")
		}
		return describeGroup(cmd.OutOrStdout(), res, buckets)
	}
	return cmd
}

// describeGroup prints a group for people.
func describeGroup(out io.Writer, res *scribev1.DescribeGroupResponse, buckets bool) error {
	g := res.GetGroup()
	fmt.Fprintf(out, "group %s reads %s, shared by %s in %d buckets, since %s\n", g.GetName(), g.GetCategory(), sharingName(g.GetSharing()), g.GetBuckets(), microTime(g.GetCreatedAt()))
	fmt.Fprintf(out, "waiting: %s\n", lagText(res.GetLag()))
	fmt.Fprintf(out, "written: %.1f pointers a second", float64(res.GetTrafficPointersPerKilosecond())/1000)
	if b := res.GetTrafficBytesPerSecond(); b > 0 {
		fmt.Fprintf(out, ", about %v a second", units.Bytes(b))
	}
	fmt.Fprintln(out)
	if n := res.GetRecommendedMembers(); n > 0 {
		fmt.Fprintf(out, "members: %d, recommended %d: %s\n", len(res.GetMembers()), n, res.GetRecommendation())
	} else {
		fmt.Fprintf(out, "members: %d\n", len(res.GetMembers()))
	}
	if res.GetIncomplete() != "" {
		fmt.Fprintf(out, "incomplete: %s\n", res.GetIncomplete())
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(res.GetMembers()) > 0 {
		fmt.Fprintln(w, "\nMEMBER\tBUCKETS\tTO GIVE\tTO COME\tWAITING\tBYTES/S\tBUSY\tDESCRIPTION")
	}
	for _, m := range res.GetMembers() {
		s := m.GetStatus()
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%v\t%d%%\t%s\n", m.GetMember(), m.GetBuckets(), m.GetRevoked(), m.GetPending(), lagText(m.GetLag()),
			units.Bytes(s.GetBytesPerSecond()), s.GetBusyPermille()/10, m.GetDescription())
	}
	if buckets {
		fmt.Fprintln(w, "\nBUCKET\tMEMBER\tNEXT\tWAITING")
		for _, b := range res.GetBuckets() {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", b.GetBucket(), b.GetMember(), b.GetNext(), lagText(b.GetLag()))
		}
		fmt.Fprintln(w, "\nSHARD\tCOMMITTED BELOW\tEND\tWAITING")
		for _, s := range res.GetShards() {
			fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", record.ShardID(s.GetShard()), s.GetLow(), s.GetNextLsn(), lagText(s.GetLag()))
		}
	}
	return w.Flush()
}

func newGroupReset() *cobra.Command {
	var to string
	var force bool
	cmd := &cobra.Command{
		Use:   "reset NAME --to PLACE",
		Short: "Move a group to another place of its category",
		Long: `Move a group to another place of its category: the beginning, the end, a time, or a checkpoint as a consumer of the category gives it.

A group with members is moved only with --force. What they have not committed by then is refused, and they go on at the new place.`,
		Example: `  scribe group reset workers --to earliest
  scribe group reset workers --to 2026-11-21T09:00:00Z --force
  scribe group reset workers --to "$(cat access.cp)"`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.Flags().StringVar(&to, "to", "", "earliest, latest, a time (RFC 3339: 2026-11-21T09:00:00Z) or a checkpoint's text")
	cmd.Flags().BoolVar(&force, "force", false, "also while the group has members")
	_ = cmd.MarkFlagRequired("to") // it exists
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &scribev1.ResetGroupRequest{Group: args[0], Force: force}
		switch at, err := time.Parse(time.RFC3339, to); {
		case to == "earliest":
			req.StartAt = scribev1.StartAt_START_AT_EARLIEST
		case to == "latest":
			req.StartAt = scribev1.StartAt_START_AT_LATEST
		case err == nil:
			req.StartAt, req.StartTime = scribev1.StartAt_START_AT_TIME, at.UnixMicro()
		default:
			if _, err := checkpoint.Parse(strings.TrimSpace(to)); err != nil {
				return usage(fmt.Errorf("--to %q is none of earliest, latest, a time as 2026-11-21T09:00:00Z, or a checkpoint: %w", to, err))
			}
			req.Checkpoint = strings.TrimSpace(to)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		if _, err := rpc.NewGroupClient(rpc.Default(), *server).ResetGroup(ctx, req); err != nil {
			return called(*server, "reset group "+args[0], err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "group %s goes on at %s\n", args[0], placeName(to))
		return nil
	}
	return cmd
}

func newGroupDelete() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "delete NAME",
		Short:   "Delete a group and its place; messages stay",
		Example: "  scribe group delete workers",
		Args:    cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also while the group has members: they end with an error")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		if _, err := rpc.NewGroupClient(rpc.Default(), *server).DeleteGroup(ctx, &scribev1.DeleteGroupRequest{Group: args[0], Force: force}); err != nil {
			return called(*server, "delete group "+args[0], err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "deleted group %s\n", args[0])
		return nil
	}
	return cmd
}

// printProto prints a message of the protocol as JSON on lines of its own.
func printProto(out io.Writer, m proto.Message, indent string) error {
	text, err := protojson.MarshalOptions{Indent: indent, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}

func sharingName(s scribev1.GroupSharing) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "GROUP_SHARING_"))
}

func microTime(micros int64) string { return time.UnixMicro(micros).UTC().Format(time.RFC3339) }

// lagText says what waits.
func lagText(l *scribev1.GroupLag) string {
	if l.GetPointers() == 0 {
		return "nothing"
	}
	text := fmt.Sprintf("%d pointers", l.GetPointers())
	if b := l.GetBytes(); b > 0 {
		text += fmt.Sprintf(", %v", units.Bytes(b))
	}
	if t := l.GetTime().AsDuration(); t > 0 {
		text += fmt.Sprintf(", %v", t.Round(time.Millisecond))
	}
	return text
}

// placeName is how a place is spoken of: checkpoints are long.
func placeName(to string) string {
	const longest = 40
	if len(to) > longest {
		return "the checkpoint"
	}
	return to
}
