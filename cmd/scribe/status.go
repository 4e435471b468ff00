package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/survey"
	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func newStatus() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether the cell is well, its processes and what they do",
		Long: `Show the cell. The first line is its health:

  healthy    everything that was looked at is in order
  degraded   the cell works, but not as well as it should, or not for long: a disk is nearly full, clocks or versions differ, a process
             that others can stand in for does not answer, the control plane is away (then what was known last is shown)
  failing    something that a cell is for does not work: nobody can write or read, a blob store fails, a disk is full
  unknown    nothing is known to be wrong, but only who may monitor the cell may ask the processes how they are

The lines after it give the reasons, the worst first: each process of the cell is asked how it is. Then come the process that was asked,
and the members. LOAD is how busy the busiest role of a member is, from 0% to 100% (it refuses work), and which one that is: callers give less
to a member that is clearly busier than the others. -o json has the loads of all roles.

A cell whose metadata several processes share also has its nodes (see "scribe node list"), or, where its processes are not nodes, the replicas of its metadata logs: which
one leads in which term, and how many entries of the journal the others lag behind; and the members of the etcd between them, as the leading one has
asked them. Both are for those who may monitor the cell.

Exit codes: 0 if the cell answers, 5 if it or its control plane can't be reached. With --check also 1 if the cell is not healthy.`,
		Example: `  scribe status
  scribe status --server http://scribe.internal:7420 -o json
  scribe status --check > /dev/null || page-somebody
  scribe status views`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	format := tableFlag(cmd)
	cmd.Flags().BoolVar(&check, "check", false, "exit with code 1 unless the cell is healthy")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		h, err := examineCell(cmd.Context(), *server)
		if err != nil {
			return err
		}
		away := awayError(*server, h)
		if asJSON {
			err = printJSON(cmd.OutOrStdout(), h.JSON())
		} else {
			err = printStatus(cmd, *server, h)
		}
		if away == nil && check && h.Summary.Health != survey.Healthy {
			err = errors.Join(err, errUnhealthy)
		}
		return errors.Join(err, away)
	}
	cmd.AddCommand(newStatusViews())
	return cmd
}

func printStatus(cmd *cobra.Command, server string, h *survey.CellHealth) error {
	out, st := cmd.OutOrStdout(), h.Status
	categories := st.GetCategories()
	known := ""
	if h.Away {
		categories, known = st.GetKnownCategories(), " (known last)"
	}
	fmt.Fprintf(out, "%sserver      %s\nversion     %s\nup          %v\nroles       %s\ncategories  %d%s\nmembers     %d%s\n", h.Summary.Text(), server, st.GetVersion(),
		elapsedSince(st.GetStartedAt()), strings.Join(scribev1.RoleNames(st.GetRoles()), ","), categories, known, len(h.Members), known)
	if l := st.GetLeadership(); l != nil {
		fmt.Fprintf(out, "leader      %s (control plane at %s, term %d)\n", cmp.Or(l.GetLeader(), "unknown"), cmp.Or(l.GetLeaderUrl(), "an unknown address"), l.GetTerm())
	}
	if n := st.GetRetirementsPending(); n > 0 {
		fmt.Fprintf(out, "retiring    %d (deleted categories whose logs are not retired yet: their names can't be reused until then)\n", n)
	}
	if len(h.Members) == 0 {
		return nil
	}
	w := newTable(out, "\nMEMBER\tROLES\tURL\tSLOT\tLOAD\tUP\tVERSION")
	for _, m := range h.Members {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%v\t%s\n", m.GetId(), strings.Join(scribev1.RoleNames(m.GetRoles()), ","), m.GetUrl(), m.GetSlot(), memberLoad(m),
			elapsedSince(m.GetJoinedAt()), m.GetVersion())
	}
	if err := w.Flush(); err != nil || h.Away {
		return err
	}
	return printCellNodes(out, h)
}

// memberLoad shows the load of a member, and of which role it is if the member says so.
func memberLoad(m *scribev1.Member) string {
	load, role := m.BusiestLoad()
	text := fmt.Sprintf("%.1f%%", float64(load)/10)
	if role != scribev1.Role_ROLE_UNSPECIFIED {
		text += " (" + scribev1.RoleNames([]scribev1.Role{role})[0] + ")"
	}
	return text
}

func newStatusViews() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "views [CATEGORY]",
		Short: "Show the views that the read proxies compute for running queries",
		Long: `Show the recent queries of each read proxy in the cell, and the views that it computes from payloads for them. A view is computed once
for all its queries, so it may have more columns and rows than one query needs; this does not affect any answer. SELECTIVITY is the
share of rows that the view keeps. HITS counts answers from the cache.`,
		Example: `  scribe status views
  scribe status views access -o json`,
		Args: cobra.MaximumNArgs(1),
	}
	server := serverFlag(cmd)
	format := tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		req := &scribev1.ViewsRequest{Category: strings.Join(args, "")}
		if len(args) > 0 {
			// A read proxy knows of queries, not of what there might be queries of.
			if _, err := getCategory(ctx, *server, "views", args[0]); err != nil {
				return err
			}
		}
		all, err := viewsOfCell(ctx, *server, req)
		if len(all) == 0 && err != nil {
			return err
		}
		if asJSON {
			return errors.Join(printJSON(cmd.OutOrStdout(), viewsJSON(all)), err)
		}
		return errors.Join(printViews(cmd.OutOrStdout(), all), err)
	}
	return cmd
}

// proxyViews is what one read proxy says.
type proxyViews struct {
	url string
	res *scribev1.ViewsResponse
}

// viewsOfCell asks every read proxy of a cell. What those say that answer comes beside the error of those that don't.
func viewsOfCell(ctx context.Context, server string, req *scribev1.ViewsRequest) ([]proxyViews, error) {
	members, err := callCell(ctx, server, "views", controlClient(server).ListMembers, &scribev1.ListMembersRequest{})
	if err != nil {
		return nil, err
	}
	var all []proxyViews
	var failed []error
	for _, m := range members.GetMembers() {
		if !slices.Contains(m.GetRoles(), scribev1.Role_ROLE_READPROXY) {
			continue
		}
		res, err := callCell(ctx, m.GetUrl(), "views", rpc.NewViewClient(rpc.Default(), m.GetUrl()).Views, req)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		all = append(all, proxyViews{m.GetUrl(), res})
	}
	if len(all)+len(failed) == 0 {
		failed = append(failed, &codedError{code: exitUnavailable, err: fmt.Errorf("the cell of %s has no read proxy", server)})
	}
	return all, errors.Join(failed...)
}

func printViews(out io.Writer, all []proxyViews) error {
	for i, p := range all {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "read proxy  %s\nzone maps   %d written, %d dropped, %d failed\n", p.url, p.res.GetZonesWritten(), p.res.GetZonesDropped(), p.res.GetZonesFailed())
		if len(p.res.GetViews()) == 0 {
			fmt.Fprintln(out, "no query is running")
			continue
		}
		w := newTable(out, "\nVIEW\tCATEGORY\tVERSION\tQUERIES\tPAYLOADS\tHITS\tIN\tOUT\tSELECTIVITY\tCOLUMNS\tPREDICATE")
		for _, v := range p.res.GetViews() {
			fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", v.GetView(), v.GetCategory(), v.GetSchemaVersion(), v.GetQueries(), v.GetPayloads(),
				v.GetHits(), units.About(v.GetBytesIn()), units.About(v.GetBytesOut()), percentText(v.GetRowsOut(), v.GetRowsIn()), strings.Join(v.GetColumns(), ","),
				cutText(v.GetPredicate(), 80))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		w = newTable(out, "\nVIEW\tCATEGORY\tPAYLOADS\tLAST ASKED\tQUERY")
		for _, q := range p.res.GetQueries() {
			fmt.Fprintf(w, "%d\t%s\t%d\t%v ago\t%s\n", q.GetView(), q.GetCategory(), q.GetPayloads(),
				elapsedSince(q.GetUsed()), cutText(q.GetQuery().GetText(), 120))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// percentText is a part of a whole as people read it.
func percentText(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}

// cutText shortens a text for a table.
func cutText(s string, most int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) <= most {
		return string(r)
	}
	return string(r[:most-1]) + "…"
}

type viewJSON struct {
	View          uint64    `json:"view"`
	Category      string    `json:"category"`
	SchemaVersion uint32    `json:"schema_version"`
	Columns       []string  `json:"columns"`
	Predicate     string    `json:"predicate"`
	Queries       uint32    `json:"queries"`
	Payloads      uint64    `json:"payloads"`
	Hits          uint64    `json:"hits"`
	BytesIn       uint64    `json:"bytes_in"`
	BytesOut      uint64    `json:"bytes_out"`
	RowsIn        uint64    `json:"rows_in"`
	RowsOut       uint64    `json:"rows_out"`
	CPUSeconds    float64   `json:"cpu_seconds"`
	Since         time.Time `json:"since"`
	Reason        string    `json:"reason"`
}

type runningJSON struct {
	Category string    `json:"category"`
	Query    string    `json:"query"`
	View     uint64    `json:"view"`
	Payloads uint64    `json:"payloads"`
	Used     time.Time `json:"used"`
}

type proxyViewsJSON struct {
	ReadProxy    string        `json:"read_proxy"`
	ZonesWritten uint64        `json:"zone_maps_written"`
	ZonesDropped uint64        `json:"zone_maps_dropped"`
	ZonesFailed  uint64        `json:"zone_maps_failed"`
	Views        []viewJSON    `json:"views"`
	Queries      []runningJSON `json:"queries"`
}

func viewsJSON(all []proxyViews) []proxyViewsJSON {
	out := make([]proxyViewsJSON, len(all))
	for i, p := range all {
		o := proxyViewsJSON{
			ReadProxy: p.url, ZonesWritten: p.res.GetZonesWritten(), ZonesDropped: p.res.GetZonesDropped(), ZonesFailed: p.res.GetZonesFailed(),
			Views: []viewJSON{}, Queries: []runningJSON{},
		}
		for _, v := range p.res.GetViews() {
			o.Views = append(o.Views, viewJSON{
				v.GetView(), v.GetCategory(), v.GetSchemaVersion(), v.GetColumns(), v.GetPredicate(), v.GetQueries(), v.GetPayloads(), v.GetHits(),
				v.GetBytesIn(), v.GetBytesOut(), v.GetRowsIn(), v.GetRowsOut(), float64(v.GetCpu()) / 1e6, timeOf(v.GetSince()), v.GetReason(),
			})
		}
		for _, q := range p.res.GetQueries() {
			o.Queries = append(o.Queries, runningJSON{
				q.GetCategory(), q.GetQuery().GetText(), q.GetView(), q.GetPayloads(), timeOf(q.GetUsed()),
			})
		}
		out[i] = o
	}
	return out
}
