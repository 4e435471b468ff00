package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"scribe/internal/base/units"
	"scribe/internal/format/placement"
	"scribe/internal/transport/layouts"
	scribev1 "scribe/proto/scribe/v1"
)

// shardJSON is how a logical shard is shown.
type shardJSON struct {
	Shard uint32 `json:"shard"`
	// FirstHash and LastHash are the hashes that are placed in the shard now, in hexadecimal; absent if none are.
	FirstHash string `json:"first_hash,omitempty"`
	LastHash  string `json:"last_hash,omitempty"`
	// Lineage is which shards' hashes it got, the last ones last.
	Lineage           []lineageJSON `json:"lineage,omitempty"`
	BytesPerSecond    units.Bytes   `json:"bytes_per_second"`
	MessagesPerSecond uint64        `json:"messages_per_second"`
	MicroShards       uint32        `json:"micro_shards"`
	LogsAhead         uint32        `json:"logs_ahead"`
	// Logs, EmptyLogs and RemovedLogs are absent where the metadata engine did not answer.
	Logs        *uint32 `json:"logs,omitempty"`
	EmptyLogs   *uint32 `json:"empty_logs,omitempty"`
	RemovedLogs *uint32 `json:"removed_logs,omitempty"`
}

// lineageJSON is where hashes of a shard came from.
type lineageJSON struct {
	From   uint32    `json:"from"`
	Since  time.Time `json:"since"`
	Merged bool      `json:"merged,omitempty"`
}

// describeShards describes the logical shards of a category, by number.
func describeShards(c *scribev1.Category, status []*scribev1.ShardStatus, counted bool) []shardJSON {
	all := make([]shardJSON, 0, c.GetShards())
	index := map[uint32]int{}
	add := func(shard uint32) {
		if _, known := index[shard]; !known {
			index[shard] = len(all)
			all = append(all, shardJSON{Shard: shard, MicroShards: 1})
		}
	}
	for shard := range max(c.GetShards(), 1) {
		add(shard)
	}
	for _, l := range c.GetLineage() {
		add(l.GetShard())
		s := &all[index[l.GetShard()]]
		s.Lineage = append(s.Lineage, lineageJSON{From: l.GetFrom(), Since: timeOf(l.GetSince()), Merged: l.GetMerged()})
	}
	for _, s := range status {
		add(s.GetShard())
		shown := &all[index[s.GetShard()]]
		shown.BytesPerSecond, shown.MessagesPerSecond = units.Bytes(s.GetBytesPerSecond()), s.GetMessagesPerSecond() //nolint:gosec // the server bounds it
		shown.MicroShards, shown.LogsAhead = s.GetMicroShards(), s.GetLogs()
	}
	if counted {
		for i := range all {
			all[i].Logs, all[i].EmptyLogs, all[i].RemovedLogs = new(uint32), new(uint32), new(uint32)
		}
		for _, s := range status {
			shown := &all[index[s.GetShard()]]
			*shown.Logs, *shown.EmptyLogs, *shown.RemovedLogs = s.GetExistingLogs(), s.GetEmptyLogs(), s.GetRemovedLogs()
		}
	}
	ranges := rangesOf(c)
	for i, r := range ranges {
		last := uint64(math.MaxUint64)
		if i+1 < len(ranges) {
			last = ranges[i+1].From - 1
		}
		s := &all[index[r.Shard]]
		s.FirstHash, s.LastHash = fmt.Sprintf("%016x", r.From), fmt.Sprintf("%016x", last)
	}
	slices.SortFunc(all, func(a, b shardJSON) int { return int(a.Shard) - int(b.Shard) })
	return all
}

// rangesOf returns which hashes are placed in which shard of a category; nil if its writers choose, or it is sticky.
func rangesOf(c *scribev1.Category) []placement.Range {
	switch {
	case layouts.Current(c) == nil:
		return nil
	case len(c.GetRanges()) > 0:
		return layouts.RangesOf(c.GetRanges())
	default:
		return placement.EqualRanges(max(c.GetShards(), 1))
	}
}

func newCategoryShards() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shards NAME",
		Short: "List the logical shards of a category: hashes, lineage, traffic and logs",
		Long: `List the logical shards of a category.

HASHES are the first and the last hash of the values that are placed in a shard, with --shard-by key or field:PATH; a shard without any was
merged into another. FROM is which shards' hashes it got, by splits and merges. The traffic is that of the last seconds, as the write proxies
report it; what is little is shown as 0. MICRO-SHARDS is by how many batchers the shard is written at least, and LOGS AHEAD for how many
batchers its log is open before they need it: both follow the traffic, and what it was at this time of other days. LOGS is how many logs it
has, EMPTY how many of them have no messages left, and REMOVED how many were removed, since nobody had used them for longer than the retention: they
come back when they are written again, and go on where they were.`,
		Example: `  scribe category shards clicks
  scribe category shards clicks -o json`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	format := tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		req := &scribev1.GetCategoryRequest{Name: args[0], WithShards: true}
		res, err := callCell(cmd.Context(), *server, "describe the shards of category "+args[0], controlClient(*server).GetCategory, req)
		if err != nil {
			return err
		}
		shards := describeShards(res.GetCategory(), res.GetShards(), res.GetLogsCounted())
		if asJSON {
			return printJSON(cmd.OutOrStdout(), shards)
		}
		w := newTable(cmd.OutOrStdout(), "SHARD\tHASHES\tFROM\tBYTES/S\tMESSAGES/S\tMICRO-SHARDS\tLOGS AHEAD\tLOGS\tEMPTY\tREMOVED")
		for i := range shards {
			s := &shards[i]
			fmt.Fprintf(w, "%d\t%s\t%s\t%v\t%d\t%d\t%d\t%s\t%s\t%s\n", s.Shard, s.hashesText(), s.lineageText(), s.BytesPerSecond, s.MessagesPerSecond, s.MicroShards,
				s.LogsAhead, knownText(s.Logs), knownText(s.EmptyLogs), knownText(s.RemovedLogs))
		}
		return w.Flush()
	}
	return cmd
}

// knownText is a number that may be unknown.
func knownText(n *uint32) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(uint64(*n), 10)
}

func (s *shardJSON) hashesText() string {
	if s.FirstHash == "" {
		return "-"
	}
	return s.FirstHash + " " + s.LastHash
}

func (s *shardJSON) lineageText() string {
	text := ""
	for _, l := range s.Lineage {
		if text != "" {
			text += ","
		}
		if text += strconv.FormatUint(uint64(l.From), 10); l.Merged {
			text += " (merged)"
		}
	}
	if text == "" {
		return "-"
	}
	return text
}

func newCategorySplit() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "split NAME SHARD",
		Short: "Split a logical shard in two halves of its hashes",
		Long: `Split a logical shard of a category that places messages by key or by a field.

The messages of the upper half of its hashes go to a new shard from now on; what is stored stays. Messages of a key keep their order: from then
on all streams of the category send in the order of persisted times, whatever their window, which delivers some milliseconds later. Open
streams are reopened once. In groups that share by shards, the halves stay with one member.

Writers learn of it within half a minute. What they placed before, such as the backlog of an agent, is stored where they placed it.`,
		Example: "  scribe category split clicks 3",
		Args:    cobra.ExactArgs(2),
	}
	server := serverFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		shard, err := parseShardArg(args[1])
		if err != nil {
			return err
		}
		return divideCategory(cmd, *server, "split shard "+args[1]+" of category "+args[0], &scribev1.UpdateCategoryRequest{Name: args[0], SplitShard: &shard})
	}
	return cmd
}

func newCategoryMerge() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "merge NAME SHARD SHARD",
		Short: "Merge two logical shards that come from one",
		Long: `Merge two logical shards that come from one by splits, and whose hashes are next to each other. All their messages go to the first one from
now on; what is stored stays, and messages of a key keep their order.`,
		Example: "  scribe category merge clicks 3 1027",
		Args:    cobra.ExactArgs(3),
	}
	server := serverFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &scribev1.UpdateCategoryRequest{Name: args[0]}
		for _, arg := range args[1:] {
			shard, err := parseShardArg(arg)
			if err != nil {
				return err
			}
			req.MergeShards = append(req.MergeShards, shard)
		}
		return divideCategory(cmd, *server, "merge shards of category "+args[0], req)
	}
	return cmd
}

// parseShardArg parses the number of a logical shard.
func parseShardArg(arg string) (uint32, error) {
	n, err := strconv.ParseUint(arg, 10, 16)
	if err != nil {
		return 0, usageError(fmt.Errorf("invalid shard %q: want a number, as \"scribe category shards\" lists them", arg))
	}
	return uint32(n), nil
}

// divideCategory splits or merges shards of the category as it is now: if it is changed meanwhile, or the answer is lost, nothing happens
// twice.
func divideCategory(cmd *cobra.Command, server, what string, req *scribev1.UpdateCategoryRequest) error {
	category, err := getCategory(cmd.Context(), server, what, req.GetName())
	if err != nil {
		return err
	}
	req.Revision = category.GetRevision()
	done, err := callCell(cmd.Context(), server, what, controlClient(server).UpdateCategory, req)
	if err != nil {
		return err
	}
	return printJSON(cmd.OutOrStdout(), describeShards(done.GetCategory(), nil, false))
}
