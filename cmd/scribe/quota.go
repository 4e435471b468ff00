package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"scribe/internal/base/units"
	scribev1 "scribe/proto/scribe/v1"
)

func newQuota() *cobra.Command {
	return newParent(&cobra.Command{
		Use:   "quota",
		Short: "Limit what all categories of an owner or a prefix write and read together",
		Long: `Set, list and remove quotas of tenants: of all categories of an owner together, or of all whose names begin with a prefix.

They come on top of the quotas of categories ("scribe category update --quota"): what is written or read has to pass the category's quota, that of
the longest prefix of its name that has one, and its owner's. "scribe top --by owner" and "--by prefix" show how much of them is used.`,
		Example: `  scribe quota set --owner shop --write 10MiB --read 50MiB --read-requests 100
  scribe quota set --prefix web. --write 100MiB --mode throttle
  scribe quota list
  scribe quota remove --owner shop`,
	}, newQuotaSet(), newQuotaList(), newQuotaRemove())
}

// tenantFlags say whose a quota is.
type tenantFlags struct{ owner, prefix string }

func (f *tenantFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.owner, "owner", "", "the quota of all categories of this owner")
	cmd.Flags().StringVar(&f.prefix, "prefix", "", "the quota of all categories whose names begin so, for example web.")
}

func (f *tenantFlags) checkFlags() error {
	if (f.owner == "") == (f.prefix == "") {
		return usageError(errors.New("want --owner or --prefix"))
	}
	return nil
}

// String names the tenant for people.
func (f *tenantFlags) String() string {
	if f.owner != "" {
		return "owner " + f.owner
	}
	return "prefix " + f.prefix
}

func newQuotaSet() *cobra.Command {
	var (
		tenant      tenantFlags
		write, read units.Bytes
		requests    uint64
		mode        = enumFlag[scribev1.QuotaMode]{scribev1.QuotaMode_QUOTA_MODE_BLOCK, "mode"}
	)
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Set the quota of an owner or a prefix",
		Long: `Set the quota of an owner or a prefix, in place of the one that it had: what is not given has no limit.

  block      what is over the quota is refused, with a hint when to try again
  throttle   it waits until the quota has room
  sample     some of it is left out, and the rest says how many it stands for; categories with exactly_once are blocked`,
		Example: `  scribe quota set --owner shop --write 10MiB --read 50MiB --read-requests 100
  scribe quota set --prefix web. --write 100MiB --mode throttle`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	tenant.addFlags(cmd)
	fs := cmd.Flags()
	fs.Var((*sizeWithUnit)(&write), "write", "bytes per second that may be written to these categories together, for example 10MiB")
	fs.Var((*sizeWithUnit)(&read), "read", "bytes per second, uncompressed, that all readers of these categories together may read, for example 50MiB")
	fs.Uint64Var(&requests, "read-requests", 0, "fetches per second that all readers of these categories together may make")
	fs.Var(&mode, "mode", "what happens beyond it: block, throttle or sample")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := tenant.checkFlags(); err != nil {
			return err
		}
		if write == 0 && read == 0 && requests == 0 {
			return usageError(errors.New("want --write, --read or --read-requests; scribe quota remove removes a quota"))
		}
		q := &scribev1.TenantQuota{
			Owner: tenant.owner, Prefix: tenant.prefix, Mode: mode.value,
			WriteBytesPerSecond: uint64(write), ReadBytesPerSecond: uint64(read), ReadRequestsPerSecond: requests, //nolint:gosec // not negative
		}
		res, err := callCell(cmd.Context(), *server, "set quota of "+tenant.String(), controlClient(*server).SetTenantQuota, &scribev1.SetTenantQuotaRequest{Quota: q})
		if err != nil {
			return err
		}
		set := res.GetQuota()
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: write %s, read %s, %s\n", tenant.String(), limitsText(set.GetWriteBytesPerSecond(), 0),
			limitsText(set.GetReadBytesPerSecond(), set.GetReadRequestsPerSecond()), quotaModeName(set.GetMode()))
		return nil
	}
	return cmd
}

func newQuotaRemove() *cobra.Command {
	var tenant tenantFlags
	cmd := &cobra.Command{
		Use:     "remove",
		Short:   "Remove the quota of an owner or a prefix",
		Example: "  scribe quota remove --owner shop\n  scribe quota remove --prefix web.",
		Args:    cobra.NoArgs,
	}
	server := serverFlag(cmd)
	tenant.addFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := tenant.checkFlags(); err != nil {
			return err
		}
		_, err := callCell(cmd.Context(), *server, "remove quota of "+tenant.String(), controlClient(*server).RemoveTenantQuota,
			&scribev1.RemoveTenantQuotaRequest{Owner: tenant.owner, Prefix: tenant.prefix})
		return err
	}
	return cmd
}

// quotaLine is the quota of a tenant in JSON.
type quotaLine struct {
	Owner        string      `json:"owner,omitempty"`
	Prefix       string      `json:"prefix,omitempty"`
	Write        units.Bytes `json:"write_per_second,omitempty"`
	Read         units.Bytes `json:"read_per_second,omitempty"`
	ReadRequests uint64      `json:"read_requests_per_second,omitempty"`
	Mode         string      `json:"mode"`
}

func quotaLineOf(q *scribev1.TenantQuota) quotaLine {
	return quotaLine{
		Owner: q.GetOwner(), Prefix: q.GetPrefix(), Write: units.Bytes(q.GetWriteBytesPerSecond()), Read: units.Bytes(q.GetReadBytesPerSecond()), //nolint:gosec // a quota beyond int64 is none
		ReadRequests: q.GetReadRequestsPerSecond(), Mode: quotaModeName(q.GetMode()),
	}
}

func newQuotaList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the quotas of owners and prefixes",
		Example: `  scribe quota list
  scribe quota list -o json`,
		Args: cobra.NoArgs,
	}
	server, format := serverFlag(cmd), tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		res, err := callCell(cmd.Context(), *server, "list quotas", controlClient(*server).ListTenantQuotas, &scribev1.ListTenantQuotasRequest{})
		if err != nil {
			return err
		}
		if asJSON {
			lines := make([]quotaLine, len(res.GetQuotas()))
			for i, q := range res.GetQuotas() {
				lines[i] = quotaLineOf(q)
			}
			return printLines(cmd.OutOrStdout(), lines...)
		}
		w := newTable(cmd.OutOrStdout(), "OWNER\tPREFIX\tWRITE\tREAD\tMODE")
		for _, q := range res.GetQuotas() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cmp.Or(q.GetOwner(), "-"), cmp.Or(q.GetPrefix(), "-"), limitsText(q.GetWriteBytesPerSecond(), 0),
				limitsText(q.GetReadBytesPerSecond(), q.GetReadRequestsPerSecond()), quotaModeName(q.GetMode()))
		}
		return w.Flush()
	}
	return cmd
}
