// Command scribe is the whole system in one binary: the servers, the host's agent, and the tools for users and operators.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	// A closed pipe is an ordinary end of a tail, and shows as a write error. SIGPIPE would end the process before it saves its
	// checkpoint.
	signal.Ignore(syscall.SIGPIPE)
	root := newRoot()
	err := root.ExecuteContext(ctx)
	if stdoutClosed(err) {
		err = nil
	}
	if err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, "scribe: "+plainText(err))
	}
	stop()
	os.Exit(exitCode(err)) //nolint:gocritic // stop was called above; nothing else is deferred
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "scribe",
		Short: "Move streams of messages from every host to every reader",
		Long: `Scribe moves streams of messages from every host to every reader.

Payloads are stored in an object store (files or S3). Small append-only logs record where each payload is, and the order.
"scribe up" runs everything in one process; the same roles run across processes with "scribe serve" and "scribe agent".

Data goes to standard output, everything else to standard error.
Exit codes: 0 ok, 1 error, 2 usage, 3 not found, 4 denied, 5 unavailable, 6 partly written.

Every flag can be given in the environment as SCRIBE_ and its name in capitals, with _ for -: SCRIBE_SERVER, SCRIBE_DATA.`,
		Example: `  scribe up                                   # in one terminal
  scribe produce access access.log            # in another: each line is a message
  scribe tail access --from earliest -o raw`,
		Version:       programVersion(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError(fmt.Errorf("%w; run %q for the list of commands", unknownCommand(cmd, args[0]), "scribe --help"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(fmt.Errorf("%w; run %q for the list of flags", unknownFlag(cmd, flagError(err)), cmd.CommandPath()+" --help"))
	})
	root.AddCommand(newUp(), newServe(), newAgent(), newCategory(), newProduce(), newTail(), newQuery(), newSchema(), newGroup(), newKey(), newNode(), newStatus(), newTop(), newDoctor(), newDebug(),
		newCert(), newToken(), newGrant(), newRevoke(), newGrants(), newAccess(), newQuota(), newInspect(), newRecover(), newBackup(), newRestore(), newBench(), newReady(), newVersion())
	prepareCommands(root)
	return root
}

// newParent makes a command that only has others. Alone it prints its help.
func newParent(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.Args, cmd.RunE = refuseCommand, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(commands...)
	return cmd
}

// refuseCommand rejects the arguments of a command that has only subcommands: they name no subcommand.
func refuseCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	return nil
}

// prepareCommands makes every command below cmd read flags from the environment, and report mistakes in arguments as usage errors.
func prepareCommands(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		prepareCommands(c)
		if args := c.Args; args != nil {
			c.Args = func(cmd *cobra.Command, a []string) error {
				if err := args(cmd, a); err != nil {
					return usageError(fmt.Errorf("%w; run %q for the usage", argsError(cmd, a, err), cmd.CommandPath()+" --help"))
				}
				return nil
			}
		}
		if run := c.RunE; run != nil {
			c.RunE = func(cmd *cobra.Command, a []string) error {
				if err := fromEnvironment(cmd.Flags()); err != nil {
					return err
				}
				if err := useClientTLS(cmd.Flags()); err != nil {
					return err
				}
				// Processes of a cell prove to each other that they are members; a client's token is nothing to them.
				if cmd.Name() != "up" && cmd.Name() != "serve" {
					if err := useToken(slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))); err != nil {
						return err
					}
				}
				return run(cmd, a)
			}
		}
	}
}

// argsError names the usage of a command that was given the wrong number of arguments.
func argsError(cmd *cobra.Command, args []string, err error) error {
	if text := err.Error(); strings.HasPrefix(text, "accepts ") || strings.HasPrefix(text, "requires ") {
		return fmt.Errorf("%q was given %s", strings.TrimSuffix(cmd.UseLine(), " [flags]"), countText(len(args), "argument"))
	}
	return err
}

// flagError replaces the name of the parsing function in an error by the expected kind of value.
func flagError(err error) error {
	bad := new(strconv.NumError)
	if !errors.As(err, &bad) {
		return err
	}
	want := "want a whole number"
	switch {
	case bad.Func == "ParseBool":
		want = "want true or false"
	case errors.Is(bad, strconv.ErrRange):
		want = "the number is too large"
	case bad.Func == "ParseUint":
		want += ", 0 or more"
	}
	return &callError{text: strings.ReplaceAll(err.Error(), bad.Error(), want), err: err}
}

// variableOf returns the environment variable that a flag's name gives.
func variableOf(flag string) string {
	return "SCRIBE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// variablesKey is the annotation of flags with other environment variables than the one that the name gives, or none.
const variablesKey = "variables"

// setVariables gives a flag its environment variables, the first that is set counts.
func setVariables(flags *pflag.FlagSet, flag string, names ...string) {
	if err := flags.SetAnnotation(flag, variablesKey, names); err != nil {
		panic(err) // there is no such flag
	}
}

// lookupVariable returns the value of a flag's environment variable, and the variable.
func lookupVariable(f *pflag.Flag) (name, value string) {
	names, ok := f.Annotations[variablesKey]
	if !ok {
		names = []string{variableOf(f.Name)}
	}
	for _, name := range names {
		if value := os.Getenv(name); value != "" {
			return name, value
		}
	}
	return "", ""
}

// fromEnvironment sets flags that are not on the command line from the environment.
func fromEnvironment(flags *pflag.FlagSet) error {
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || err != nil {
			return
		}
		if name, v := lookupVariable(f); v != "" {
			if serr := flags.Set(f.Name, v); serr != nil {
				err = usageError(fmt.Errorf("environment variable %s: %w", name, flagError(serr)))
			}
		}
	})
	return err
}
