package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newSchemaCheck() *cobra.Command {
	var against string
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a schema",
		Long: `Check the schema in a file (- for stdin): everything that is wrong with it is said at once, with lines.

--against compares it with the newest version of a category's schema: + marks what reads the same as before, ! what does not. The exit code is 1
if there is any of the latter.`,
		Example: `  scribe schema check access.yaml
  scribe schema check access.yaml --against access`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.Flags().StringVar(&against, "against", "", "compare with this category's newest version")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := readSchema(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %d fields\n", args[0], s.Format, len(s.Fields))
		if against == "" {
			return nil
		}
		category, err := getCategory(cmd.Context(), *server, "compare with category "+against, against)
		if err != nil {
			return err
		}
		h, err := history(category)
		if err != nil {
			return err
		}
		changesOf(cmd.OutOrStdout(), h, s)
		return compatible(h, s, false)
	}
	return cmd
}
