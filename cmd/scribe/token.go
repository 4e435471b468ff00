package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// useToken takes the token of the environment, SCRIBE_TOKEN or the file that SCRIBE_TOKEN_FILE names, for all calls of this command. The file may be
// replaced while the command runs.
func useToken(log *slog.Logger) error {
	text := os.Getenv("SCRIBE_TOKEN")
	if path := os.Getenv("SCRIBE_TOKEN_FILE"); text == "" && path != "" {
		source, err := rpc.FileTokens(path, log)
		if errors.Is(err, fs.ErrNotExist) {
			return usageError(fmt.Errorf("environment variable SCRIBE_TOKEN_FILE: there is no file %s", path))
		}
		if err != nil {
			return usageError(fmt.Errorf("environment variable SCRIBE_TOKEN_FILE: %w", err))
		}
		rpc.SetDefaultTokens(source)
		return nil
	}
	if text = strings.TrimSpace(text); text != "" {
		rpc.SetDefaultToken(text)
	}
	return nil
}

func accessClient(server string) rpc.AccessService { return rpc.NewAccessClient(rpc.Default(), server) }

func newToken() *cobra.Command {
	return newParent(&cobra.Command{
		Use:   "token",
		Short: "Issue, list and revoke tokens",
		Long: `A token lets a program do what its rules say. The first token or grant closes the cell: from then on, only what a rule allows is allowed.
So the first one must be an administrator's, with --can 'all:*'.

A rule is PERMISSION[,PERMISSION...]:PATTERN. Permissions are write, read, query, group, manage, operate (the cell as a whole: tokens, grants,
nodes, metrics), monitor (metrics, health and traffic of the cell) and all. A pattern is the name of a category, the beginning of names and a star (web.*), or owner=OWNER.

Rules for read and query can be limited to some rows and columns (docs/security.md):

  read,query:payments where region = 'eu' mask card
  PERMISSIONS:PATTERN [where CONDITION] [hide COLUMN, ...] [mask COLUMN, ...] [show COLUMN, ...]

A condition is one of SQL, over the columns of the category. A hidden column does not exist for the reader, a masked one is null. With either, _key and _attr are null as
well unless "show" names them. Of several rules of one principal each shows what it shows; one without a limit shows all. In a shell, put a rule with quotes into double quotes.

Clients send the token in SCRIBE_TOKEN, or in the file that SCRIBE_TOKEN_FILE names, which may be replaced while they run; curl with the header "Authorization: Bearer TOKEN".`,
		Example: `  scribe token issue --can 'all:*' --name admin
  scribe token issue --can 'write:web.*' --ttl 30d --name web-frontends
  scribe token issue --can "read,query:payments where region = 'eu' mask card" --name eu-analysts
  SCRIBE_TOKEN=scribe_... scribe produce web.access access.log
  scribe token list
  scribe token revoke k2v7qjx4m3ap`,
	}, newTokenIssue(), newTokenList(), newTokenRevoke())
}

func newTokenIssue() *cobra.Command {
	var (
		rules []string
		name  string
		ttl   units.Duration
	)
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Issue a token and print it",
		Long: `Issue a token and print it, alone, on standard output. It can't be printed again: the cell keeps only its hash.

With --can the token may do what these rules say, and nothing else. Without, it may do what is granted to the principal --name.`,
		Example: `  scribe token issue --can 'write:web.*' --can 'read:web.access' --ttl 30d
  scribe token issue --name alice          # what "scribe grant alice ..." gives`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	cmd.Flags().StringArrayVar(&rules, "can", nil, "a rule, for example write:web.* or \"read:payments where region = 'eu' mask card\"; give several with several flags")
	cmd.Flags().StringVar(&name, "name", "", "principal that the token proves, for grants, lists and logs (default: the token's id)")
	cmd.Flags().Var(&ttl, "ttl", "how long the token is valid, for example 30d (default: until it is revoked)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		req := &scribev1.IssueTokenRequest{Principal: name, Rules: rules}
		if ttl > 0 {
			req.Ttl = durationpb.New(ttl.Std())
		}
		res, err := callCell(cmd.Context(), *server, "issue token", accessClient(*server).IssueToken, req)
		if err != nil {
			return err
		}
		t := res.GetToken()
		fmt.Fprintf(cmd.ErrOrStderr(), "token %s of %s, valid %s; revoke it with: scribe token revoke %s\n", t.GetId(), t.GetPrincipal(), untilText(t.GetExpiresAt()), t.GetId())
		_, err = fmt.Fprintln(cmd.OutOrStdout(), res.GetText())
		return err
	}
	return cmd
}

// untilText is when a token ends.
func untilText(micros int64) string {
	if micros == 0 {
		return "until it is revoked"
	}
	return "until " + timeOf(micros).Format(time.RFC3339)
}

// tokenLine is a token in JSON.
type tokenLine struct {
	ID        string     `json:"id"`
	Principal string     `json:"principal,omitempty"`
	State     string     `json:"state"`
	Rules     []string   `json:"rules,omitempty"`
	IssuedAt  *time.Time `json:"issued_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
}

func tokenLineOf(t *scribev1.AccessToken, now time.Time) tokenLine {
	at := func(micros int64) *time.Time {
		if micros == 0 {
			return nil
		}
		return new(timeOf(micros))
	}
	l := tokenLine{ID: t.GetId(), Principal: t.GetPrincipal(), State: "valid", Rules: t.GetRules(), IssuedAt: at(t.GetIssuedAt()), ExpiresAt: at(t.GetExpiresAt()), RevokedAt: at(t.GetRevokedAt())}
	switch {
	case l.RevokedAt != nil:
		l.State = "revoked"
	case l.ExpiresAt != nil && !now.Before(*l.ExpiresAt):
		l.State = "expired"
	}
	return l
}

func newTokenList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tokens by id",
		Long:  `List tokens by id: whose they are, what they may do and until when. Tokens that were revoked or have expired are listed for a week.`,
		Example: `  scribe token list
  scribe token list -o json`,
		Args: cobra.NoArgs,
	}
	server, format := serverFlag(cmd), tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		var lines []tokenLine
		for req := (&scribev1.ListTokensRequest{}); ; {
			res, err := callCell(cmd.Context(), *server, "list tokens", accessClient(*server).ListTokens, req)
			if err != nil {
				return err
			}
			for _, t := range res.GetTokens() {
				lines = append(lines, tokenLineOf(t, time.Now()))
			}
			for _, id := range res.GetDamaged() {
				lines = append(lines, tokenLine{ID: id, State: "damaged"})
			}
			if req.After = res.GetNext(); !res.GetMore() {
				break
			}
		}
		if asJSON {
			return printLines(cmd.OutOrStdout(), lines...)
		}
		w := newTable(cmd.OutOrStdout(), "ID\tPRINCIPAL\tSTATE\tEXPIRES\tRULES")
		for _, l := range lines {
			expires, rules := "never", joinRules(l.Rules)
			if l.ExpiresAt != nil {
				expires = l.ExpiresAt.Format(time.RFC3339)
			}
			if rules == "" {
				rules = "(those of the principal)"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", l.ID, l.Principal, l.State, expires, rules)
		}
		return w.Flush()
	}
	return cmd
}

func newTokenRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke a token: within seconds no process of the cell accepts it",
		Example: "  scribe token revoke k2v7qjx4m3ap",
		Args:    cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, err := callCell(cmd.Context(), *server, "revoke token "+args[0], accessClient(*server).RevokeToken, &scribev1.RevokeTokenRequest{Id: args[0]})
		return err
	}
	return cmd
}
