package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func newGrant() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grant PRINCIPAL RULE...",
		Short: "Give rules to a principal or role",
		Long: `Give rules to a principal: the name that a token or a client certificate proves. A role, role:NAME, has rules like a principal; whoever is
granted "role:NAME" has them. See "scribe token --help" for rules, also for those that are limited to some rows and columns.

The first grant or token closes the cell: from then on, only what a rule allows is allowed. So somebody must have all:* first.`,
		Example: `  scribe grant alice 'read:web.*' query:web.access
  scribe grant role:web 'write,read:web.*' 'group:owner=web'
  scribe grant bob role:web
  scribe grant role:eu "read,query:payments where region = 'eu' mask card"`,
		Args: cobra.MinimumNArgs(2),
	}
	server := serverFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		res, err := callCell(cmd.Context(), *server, "grant to "+args[0], accessClient(*server).AddGrants, &scribev1.AddGrantsRequest{Principal: args[0], Rules: args[1:]})
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s has %s\n", args[0], joinRules(res.GetGrant().GetRules()))
		return nil
	}
	return cmd
}

func newRevoke() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "revoke PRINCIPAL RULE...",
		Short: "Take rules from a principal or role",
		Long: `Take rules from a principal or role. Within seconds every process of the cell heeds it, and ends streams and queries that are not allowed any
more. With --all it loses all rules, also if their record is damaged. Tokens are revoked with "scribe token revoke".`,
		Example: `  scribe revoke alice 'read:web.*'
  scribe revoke bob role:web
  scribe revoke alice --all`,
		Args: cobra.MinimumNArgs(1),
	}
	server := serverFlag(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "take all rules")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all == (len(args) > 1) {
			return usageError(errors.New("want rules to take, or --all"))
		}
		res, err := callCell(cmd.Context(), *server, "revoke from "+args[0], accessClient(*server).RemoveGrants,
			&scribev1.RemoveGrantsRequest{Principal: args[0], Rules: args[1:], All: all})
		if err != nil {
			return err
		}
		left := joinRules(res.GetGrant().GetRules())
		if left == "" {
			left = "no rules"
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s has %s\n", args[0], left)
		return nil
	}
	return cmd
}

// joinRules is rules for people. Those that are limited to rows and columns have blanks of their own.
func joinRules(rules []string) string {
	for _, r := range rules {
		if strings.Contains(r, " ") {
			return strings.Join(rules, "; ")
		}
	}
	return strings.Join(rules, " ")
}

// grantLine is what a principal or role has, in JSON.
type grantLine struct {
	Principal string   `json:"principal"`
	Rules     []string `json:"rules,omitempty"`
	Damaged   bool     `json:"damaged,omitempty"`
}

func newGrants() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grants",
		Short: "List what is granted to principals and roles",
		Example: `  scribe grants
  scribe grants -o json`,
		Args: cobra.NoArgs,
	}
	server, format := serverFlag(cmd), tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		var lines []grantLine
		for req := (&scribev1.ListGrantsRequest{}); ; {
			res, err := callCell(cmd.Context(), *server, "list grants", accessClient(*server).ListGrants, req)
			if err != nil {
				return err
			}
			for _, g := range res.GetGrants() {
				lines = append(lines, grantLine{Principal: g.GetPrincipal(), Rules: g.GetRules()})
			}
			for _, name := range res.GetDamaged() {
				lines = append(lines, grantLine{Principal: name, Damaged: true})
			}
			if req.After = res.GetNext(); !res.GetMore() {
				break
			}
		}
		if asJSON {
			return printLines(cmd.OutOrStdout(), lines...)
		}
		w := newTable(cmd.OutOrStdout(), "PRINCIPAL\tRULES")
		for _, l := range lines {
			rules := joinRules(l.Rules)
			if l.Damaged {
				rules = "(damaged: no rights)"
			}
			fmt.Fprintf(w, "%s\t%s\n", l.Principal, rules)
		}
		return w.Flush()
	}
	return cmd
}

func newAccess() *cobra.Command {
	return newParent(&cobra.Command{
		Use:     "access",
		Short:   "Explain who may do what",
		Example: "  scribe access check --as alice --do read --on web.access",
	}, newAccessCheck())
}

func newAccessCheck() *cobra.Command {
	var as, token, file, do, on string
	var roles []string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether a principal may do something, and which rule decides",
		Long: `Say whether a principal or token may do something to a category, which need not exist, or without --on to the cell as a whole. The rule that
decides is printed, and whose it is, and to which rows and columns reading is limited. The exit code is 0 if it is allowed, and 4 if it is denied.

--token-file asks about the text of a token, of the cell or of an issuer (--oidc-issuer): whom it names, with which roles and until when, or why it proves nothing to the
process that is asked. --role adds roles that an issuer's token would give.`,
		Example: `  scribe access check --as alice --do read --on web.access
  scribe access check --token-id k2v7qjx4m3ap --do operate
  scribe access check --as oidc:alice --role role:oidc:web --do read --on web.access
  scribe access check --token-file alice.jwt --do read --on web.access`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	cmd.Flags().StringVar(&as, "as", "", "the principal")
	cmd.Flags().StringVar(&token, "token-id", "", "the id of a token, in place of a principal")
	cmd.Flags().StringVar(&file, "token-file", "", "a file with the text of a token, in place of a principal; - for standard input")
	cmd.Flags().StringSliceVar(&roles, "role", nil, "a role that an issuer's token gives the principal, role:NAME; several, separated by commas")
	cmd.Flags().StringVar(&do, "do", "", "the permission: write, read, query, group, manage, operate or monitor")
	cmd.Flags().StringVar(&on, "on", "", "the category")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		given := 0
		for _, of := range []string{as, token, file} {
			if of != "" {
				given++
			}
		}
		if do == "" || given != 1 {
			return usageError(errors.New("want --do, and one of --as, --token-id and --token-file"))
		}
		req := &scribev1.CheckAccessRequest{Principal: as, Token: token, Roles: roles, Permission: do, Category: on}
		if file != "" {
			if req.Text, err = readTokenText(cmd, file); err != nil {
				return err
			}
		}
		res, err := callCell(cmd.Context(), *server, "check access", accessClient(*server).CheckAccess, req)
		if err != nil {
			return err
		}
		if res.GetPrincipal() != "" {
			fmt.Fprintln(cmd.OutOrStdout(), describeProof(res))
		}
		verdict := "denied"
		if res.GetAllowed() {
			verdict = "allowed"
		}
		if res.GetRule() != "" {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, of %s (%s)\n", verdict, res.GetRule(), res.GetHolder(), res.GetReason())
		} else {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", verdict, res.GetReason())
		}
		printLimits(cmd.OutOrStdout(), res)
		if !res.GetAllowed() {
			return &codedError{code: exitDenied, err: errors.New("")}
		}
		return nil
	}
	return cmd
}

// printLimits says to which rows and columns somebody is limited.
func printLimits(w io.Writer, res *scribev1.CheckAccessResponse) {
	switch limits := res.GetLimits(); len(limits) {
	case 0:
		return
	case 1:
		fmt.Fprintf(w, "limited: %s\n", limits[0])
	default:
		for _, l := range limits {
			fmt.Fprintf(w, "limited to what one of them shows: %s\n", l)
		}
	}
	if why := res.GetInapplicable(); why != "" {
		fmt.Fprintf(w, "nothing can be read now: %s\n", why)
	}
}

// readTokenText reads the text of a token from a file, or from standard input.
func readTokenText(cmd *cobra.Command, file string) (string, error) {
	from := cmd.InOrStdin()
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", usageError(fmt.Errorf("--token-file: %w", err))
		}
		defer func() { _ = f.Close() }() // it was only read
		from = f
	}
	text, err := rpc.ReadToken(from)
	if err != nil {
		return "", usageError(fmt.Errorf("--token-file: %s: %w", file, err))
	}
	return text, nil
}

// describeProof says whom a token proves.
func describeProof(res *scribev1.CheckAccessResponse) string {
	text := fmt.Sprintf("the token proves %s", res.GetPrincipal())
	if len(res.GetRoles()) > 0 {
		text += " with " + strings.Join(res.GetRoles(), " ")
	}
	return text + ", valid " + untilText(res.GetExpiresAt())
}
