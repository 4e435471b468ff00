package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"scribe/internal/base/units"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

func newGroup() *cobra.Command {
	return newParent(&cobra.Command{
		Use:   "group",
		Short: "List, describe, reset and delete consumer groups",
		Long: `A consumer group is a set of programs that share a category. Each member reads a part of it, and the group stores the committed position of
each part. The first member ("scribe tail --group", or a program with the consumer library) creates the group, which stays until it is
deleted.

A category is divided into buckets. Sharing by pointers spreads payloads over all buckets, so that a category of one shard keeps as many
members busy as there are buckets. Sharing by shards puts each logical shard in one bucket, so that one member at a time reads its
messages, in order.`,
		Example: `  scribe tail access --group audit --from earliest
  scribe group describe audit`,
	}, newGroupList(), newGroupDescribe(), newGroupReset(), newGroupDelete())
}

func newGroupList() *cobra.Command {
	var prefix, category string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List groups by name",
		Example: `  scribe group list
  scribe group list --category access -o json`,
		Args: cobra.NoArgs,
	}
	server, format := serverFlag(cmd), tableFlag(cmd)
	cmd.Flags().StringVar(&prefix, "prefix", "", "list only names with this prefix")
	cmd.Flags().StringVar(&category, "category", "", "list only groups that read this category")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		if !asJSON {
			fmt.Fprintln(w, "NAME\tCATEGORY\tSHARING\tBUCKETS\tMEMBERS\tGENERATION")
		}
		for req := (&scribev1.ListGroupsRequest{Prefix: prefix, Category: category}); ; {
			res, err := callCell(cmd.Context(), *server, "list groups", groupClient(*server).ListGroups, req)
			if err != nil {
				return err
			}
			for _, g := range res.GetGroups() {
				if asJSON {
					err = printLines(cmd.OutOrStdout(), groupOf(g))
				} else {
					_, err = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\n", g.GetName(), g.GetCategory(), scribev1.EnumName(g.GetSharing()), g.GetBuckets(),
						g.GetMembers(), g.GetGeneration())
				}
				if err != nil {
					return err
				}
			}
			if req.After = res.GetNext(); !res.GetMore() {
				return w.Flush()
			}
		}
	}
	return cmd
}

func newGroupDescribe() *cobra.Command {
	var buckets, shards bool
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Show a group's members, their lag, and how many members it needs",
		Long: `Show a group: its members with the lag of each, the total lag, and the recommended number of members.

The lag is counted in pointers, one per payload. Its bytes are an estimate of decoded payload, from the average that the group has read.
Its time is an upper bound for the age of the oldest pending message. -o json includes every bucket and every shard.`,
		Example: `  scribe group describe audit
  scribe group describe audit --buckets --shards
  scribe group describe audit -o json`,
		Args: cobra.ExactArgs(1),
	}
	server, format := serverFlag(cmd), tableFlag(cmd)
	cmd.Flags().BoolVar(&buckets, "buckets", false, "show each bucket")
	cmd.Flags().BoolVar(&shards, "shards", false, "show each physical shard")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		d, err := callCell(cmd.Context(), *server, "describe group "+args[0], groupClient(*server).DescribeGroup,
			&scribev1.DescribeGroupRequest{Group: args[0], Brief: !asJSON && !buckets && !shards})
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), groupDescription(d))
		}
		return showGroup(cmd.OutOrStdout(), d, buckets, shards)
	}
	return cmd
}

func showGroup(out io.Writer, d *scribev1.DescribeGroupResponse, buckets, shards bool) error {
	g, recommended := d.GetGroup(), "-"
	if n := d.GetRecommendedMembers(); n > 0 {
		recommended = fmt.Sprint(n)
	}
	fmt.Fprintf(out, "group        %s\ncategory     %s\nsharing      %s, %d buckets\ngeneration   %d\nlag          %s\ntraffic      %s/s\nmembers      %d, recommended %s\n             %s\n",
		g.GetName(), g.GetCategory(), scribev1.EnumName(g.GetSharing()), g.GetBuckets(), g.GetGeneration(), lagText(d.GetLag()), trafficText(d),
		g.GetMembers(), recommended, d.GetRecommendation())
	if why := d.GetIncomplete(); why != "" {
		fmt.Fprintf(out, "incomplete   %s\n", why)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(d.GetMembers()) > 0 {
		fmt.Fprintln(w, "\nMEMBER\tBUCKETS\tGIVES\tGETS\tLAG\tBYTES\tBEHIND\tRATE\tBUSY\tUP\tDESCRIPTION")
	}
	for _, m := range d.GetMembers() {
		s := m.GetStatus()
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%v/s\t%.0f%%\t%v\t%s\n", m.GetMember(), m.GetBuckets(), m.GetRevoked(), m.GetPending(), lagCells(m.GetLag()),
			units.About(s.GetBytesPerSecond()), float64(s.GetBusyPermille())/10, elapsedSince(m.GetJoinedAt()), m.GetDescription())
	}
	if buckets {
		fmt.Fprintln(w, "\nBUCKET\tMEMBER\tNEXT\tSINCE\tLAG\tBYTES\tBEHIND")
		for _, b := range d.GetBuckets() {
			fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%s\n", b.GetBucket(), cmp.Or(b.GetMember(), "-"), cmp.Or(b.GetNext(), "-"), b.GetGeneration(), lagCells(b.GetLag()))
		}
	}
	if shards {
		fmt.Fprintln(w, "\nSHARD\tCOMMITTED\tNEXT\tLAG\tBYTES")
		for _, s := range d.GetShards() {
			fmt.Fprintf(w, "%v\t%d\t%d\t%d\t%v\n", record.ShardID(s.GetShard()), s.GetLow(), s.GetNextLsn(), s.GetLag().GetPointers(), units.About(s.GetLag().GetBytes()))
		}
	}
	return w.Flush()
}

func lagText(l *scribev1.GroupLag) string {
	if l.GetPointers() == 0 {
		return "none"
	}
	text := fmt.Sprintf("%d pointers", l.GetPointers())
	if l.GetBytes() > 0 {
		text += ", " + units.About(l.GetBytes())
	}
	if l.GetTime() != nil {
		text += ", " + lagTime(l)
	}
	return text
}

func lagCells(l *scribev1.GroupLag) string {
	return fmt.Sprintf("%d\t%v\t%s", l.GetPointers(), units.About(l.GetBytes()), lagTime(l))
}

func lagTime(l *scribev1.GroupLag) string {
	if l.GetTime() == nil {
		return "-"
	}
	return units.Duration(l.GetTime().AsDuration().Round(time.Millisecond)).String()
}

func trafficText(d *scribev1.DescribeGroupResponse) string {
	text := fmt.Sprintf("%.1f pointers", float64(d.GetTrafficPointersPerKilosecond())/1000)
	if b := d.GetTrafficBytesPerSecond(); b > 0 {
		text += ", " + units.About(b)
	}
	return text
}

func newGroupReset() *cobra.Command {
	var to string
	var force bool
	cmd := &cobra.Command{
		Use:   "reset NAME --to earliest|latest|TIME|CHECKPOINT",
		Short: "Move a group to another position",
		Long: `Move a whole group to another position: the oldest message, the current end, a time, or the text of a checkpoint of its category. While
the group has members, this fails with exit code 1. With --force the members continue from the new position, and what they have not
committed by then is refused.`,
		Example: `  scribe group reset audit --to earliest
  scribe group reset audit --to 2026-11-21T09:00:00Z
  scribe group reset audit --to "$(cat audit.checkpoint)" --force`,
		Args: cobra.ExactArgs(1),
	}
	server, format := serverFlag(cmd), tableFlag(cmd)
	cmd.Flags().StringVar(&to, "to", "", "earliest, latest, "+units.TimeHelp+" or the text of a checkpoint")
	cmd.Flags().BoolVar(&force, "force", false, "allow it while the group has members")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		req := &scribev1.ResetGroupRequest{Group: args[0], Force: force}
		if err := resetTo(req, to); err != nil {
			return usageError(err)
		}
		res, err := callCell(cmd.Context(), *server, "reset group "+args[0], groupClient(*server).ResetGroup, req)
		if err != nil {
			return err
		}
		if asJSON {
			return printLines(cmd.OutOrStdout(), groupOf(res.GetGroup()))
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "reset %s to %s\n", args[0], excerptOf(to))
		return nil
	}
	return cmd
}

// resetTo takes where to go.
func resetTo(req *scribev1.ResetGroupRequest, to string) error {
	to = strings.TrimSpace(to)
	switch to {
	case "":
		return fmt.Errorf("missing --to: want earliest, latest, %s or a checkpoint", units.TimeHelp)
	case "earliest":
		req.StartAt = scribev1.StartAt_START_AT_EARLIEST
		return nil
	case "latest":
		req.StartAt = scribev1.StartAt_START_AT_LATEST
		return nil
	}
	if at, err := units.ParseTime(to, time.Now()); err == nil {
		req.StartAt, req.StartTime = scribev1.StartAt_START_AT_TIME, at.UnixMicro()
		return nil
	}
	if err := checkStart(to); err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	if _, err := checkpoint.Parse(to); err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	req.Checkpoint = to
	return nil
}

func newGroupDelete() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a group, with its committed positions",
		Long: `Delete a group. This can't be undone: a new group of the same name starts afresh. While the group has members, this fails with exit
code 1; with --force, its members end with an error.`,
		Example: "  scribe group delete audit",
		Args:    cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also while the group has members")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &scribev1.DeleteGroupRequest{Group: args[0], Force: force}
		if _, err := callCell(cmd.Context(), *server, "delete group "+args[0], groupClient(*server).DeleteGroup, req); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "deleted %s\n", args[0])
		return nil
	}
	return cmd
}

// groupJSON is how a group is shown.
type groupJSON struct {
	Name         string    `json:"name"`
	Category     string    `json:"category"`
	Sharing      string    `json:"sharing"`
	Buckets      uint32    `json:"buckets"`
	Members      uint32    `json:"members"`
	Generation   uint64    `json:"generation"`
	CreatedAt    time.Time `json:"created_at"`
	PositionedAt time.Time `json:"positioned_at"`
}

func groupOf(g *scribev1.Group) groupJSON {
	return groupJSON{
		Name: g.GetName(), Category: g.GetCategory(), Sharing: scribev1.EnumName(g.GetSharing()), Buckets: g.GetBuckets(), Members: g.GetMembers(),
		Generation: g.GetGeneration(), CreatedAt: timeOf(g.GetCreatedAt()), PositionedAt: timeOf(g.GetPositionedAt()),
	}
}

type lagJSON struct {
	Pointers uint64 `json:"pointers"`
	Bytes    uint64 `json:"bytes"`
	// Seconds is left out when it is not known.
	Seconds *float64 `json:"seconds,omitempty"`
}

func lagOf(l *scribev1.GroupLag) lagJSON {
	out := lagJSON{Pointers: l.GetPointers(), Bytes: l.GetBytes()}
	if l.GetTime() != nil {
		out.Seconds = new(l.GetTime().AsDuration().Seconds())
	}
	return out
}

type groupMemberJSON struct {
	Member            string     `json:"member"`
	Epoch             uint64     `json:"epoch"`
	Description       string     `json:"description,omitempty"`
	JoinedAt          time.Time  `json:"joined_at"`
	Buckets           uint32     `json:"buckets"`
	Gives             uint32     `json:"gives"`
	Gets              uint32     `json:"gets"`
	Lag               lagJSON    `json:"lag"`
	BytesPerSecond    uint64     `json:"bytes_per_second"`
	MessagesPerSecond uint64     `json:"messages_per_second"`
	Busy              float64    `json:"busy"`
	Watermark         *time.Time `json:"watermark,omitempty"`
}

type groupBucketJSON struct {
	Bucket     uint32  `json:"bucket"`
	Member     string  `json:"member,omitempty"`
	Next       string  `json:"next,omitempty"`
	Generation uint64  `json:"generation"`
	Lag        lagJSON `json:"lag"`
}

type groupShardJSON struct {
	Shard     string  `json:"shard"`
	Committed uint64  `json:"committed"`
	NextLSN   uint64  `json:"next_lsn"`
	Lag       lagJSON `json:"lag"`
}

func groupDescription(d *scribev1.DescribeGroupResponse) any {
	out := struct {
		groupJSON

		Lag                lagJSON           `json:"lag"`
		PointersPerSecond  float64           `json:"traffic_pointers_per_second"`
		BytesPerSecond     uint64            `json:"traffic_bytes_per_second"`
		RecommendedMembers uint32            `json:"recommended_members"`
		Recommendation     string            `json:"recommendation"`
		Incomplete         string            `json:"incomplete,omitempty"`
		MemberList         []groupMemberJSON `json:"member_list"`
		BucketList         []groupBucketJSON `json:"bucket_list"`
		ShardList          []groupShardJSON  `json:"shard_list"`
	}{
		groupJSON: groupOf(d.GetGroup()), Lag: lagOf(d.GetLag()), PointersPerSecond: float64(d.GetTrafficPointersPerKilosecond()) / 1000,
		BytesPerSecond: d.GetTrafficBytesPerSecond(), RecommendedMembers: d.GetRecommendedMembers(), Recommendation: d.GetRecommendation(), Incomplete: d.GetIncomplete(),
		MemberList: []groupMemberJSON{}, BucketList: []groupBucketJSON{}, ShardList: []groupShardJSON{},
	}
	for _, m := range d.GetMembers() {
		s := m.GetStatus()
		j := groupMemberJSON{
			Member: m.GetMember(), Epoch: m.GetEpoch(), Description: m.GetDescription(), JoinedAt: timeOf(m.GetJoinedAt()),
			Buckets: m.GetBuckets(), Gives: m.GetRevoked(), Gets: m.GetPending(), Lag: lagOf(m.GetLag()),
			BytesPerSecond: s.GetBytesPerSecond(), MessagesPerSecond: s.GetMessagesPerSecond(), Busy: float64(s.GetBusyPermille()) / 1000,
		}
		if s.GetWatermark() > 0 {
			j.Watermark = new(timeOf(s.GetWatermark()))
		}
		out.MemberList = append(out.MemberList, j)
	}
	for _, b := range d.GetBuckets() {
		out.BucketList = append(out.BucketList, groupBucketJSON{Bucket: b.GetBucket(), Member: b.GetMember(), Next: b.GetNext(), Generation: b.GetGeneration(), Lag: lagOf(b.GetLag())})
	}
	for _, s := range d.GetShards() {
		out.ShardList = append(out.ShardList, groupShardJSON{Shard: record.ShardID(s.GetShard()).String(), Committed: s.GetLow(), NextLSN: s.GetNextLsn(), Lag: lagOf(s.GetLag())})
	}
	return out
}
