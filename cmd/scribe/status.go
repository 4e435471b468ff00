package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func newStatus() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the processes of the cell and what they do",
		Example: `  scribe status
  scribe status --server http://scribe.internal:7420 --json
  scribe status views`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		st, err := rpc.NewControlClient(rpc.Default(), *server).GetStatus(ctx, &scribev1.GetStatusRequest{})
		if err != nil {
			return callFailure(*server, "status", err)
		}
		var away error
		if len(st.GetMembers()) == 0 && !slices.Contains(st.GetRoles(), scribev1.Role_ROLE_CONTROLPLANE) {
			// A control plane that answers knows at least itself.
			away = &codedError{code: exitUnavailable, err: fmt.Errorf("%s can't reach its control plane: members and categories are unknown", *server)}
		}
		if asJSON {
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			return errors.Join(enc.Encode(statusJSON(st)), away)
		}
		out := cmd.OutOrStdout()
		fmt.Fprintf(out, "server      %s\nversion     %s\nup          %v\nroles       %s\ncategories  %d\nmembers     %d\n", *server, st.GetVersion(),
			elapsedSince(st.GetStartedAt()), roleNames(st.GetRoles()), st.GetCategories(), len(st.GetMembers()))
		if n := st.GetRetirementsPending(); n > 0 {
			fmt.Fprintf(out, "retiring    %d (deleted categories whose logs are not retired yet: their names can't be reused until then)\n", n)
		}
		if len(st.GetMembers()) == 0 {
			return away
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "\nMEMBER\tROLES\tURL\tSLOT\tLOAD\tUP\tVERSION")
		for _, m := range st.GetMembers() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%.1f%%\t%v\t%s\n", m.GetId(), roleNames(m.GetRoles()), m.GetUrl(), m.GetSlot(), float64(m.GetLoad())/10,
				elapsedSince(m.GetJoinedAt()), m.GetVersion())
		}
		return w.Flush()
	}
	cmd.AddCommand(newStatusViews())
	return cmd
}

// elapsedSince returns the time since micros, in whole seconds. The clock of micros may be ahead of this one.
func elapsedSince(micros int64) units.Duration {
	return units.Duration(max(time.Since(time.UnixMicro(micros)), 0).Round(time.Second))
}

func roleNames(roles []scribev1.Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
	}
	return strings.Join(names, ",")
}

type memberJSON struct {
	ID       string    `json:"id"`
	Roles    []string  `json:"roles"`
	URL      string    `json:"url"`
	Slot     uint32    `json:"slot"`
	Load     float64   `json:"load"`
	JoinedAt time.Time `json:"joined_at"`
	Version  string    `json:"version"`
}

func statusJSON(st *scribev1.GetStatusResponse) any {
	split := func(roles []scribev1.Role) []string { return strings.Split(roleNames(roles), ",") }
	members := make([]memberJSON, len(st.GetMembers()))
	for i, m := range st.GetMembers() {
		members[i] = memberJSON{
			ID: m.GetId(), Roles: split(m.GetRoles()), URL: m.GetUrl(), Slot: m.GetSlot(), Load: float64(m.GetLoad()) / 1000,
			JoinedAt: time.UnixMicro(m.GetJoinedAt()).UTC(), Version: m.GetVersion(),
		}
	}
	return struct {
		Version    string       `json:"version"`
		StartedAt  time.Time    `json:"started_at"`
		Roles      []string     `json:"roles"`
		Categories uint64       `json:"categories"`
		Retiring   uint64       `json:"retirements_pending"`
		Members    []memberJSON `json:"members"`
	}{st.GetVersion(), time.UnixMicro(st.GetStartedAt()).UTC(), split(st.GetRoles()), st.GetCategories(), st.GetRetirementsPending(), members}
}
