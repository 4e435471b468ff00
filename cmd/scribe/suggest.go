package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// suggestText returns ", did you mean X?" for the name that is nearest to one that was given; "" if none is near. A name is near if it
// begins with what was given, or if a third of its letters, at most three, are wrong.
func suggestText(given string, names []string, form string) string {
	best, least := "", min(1+len(given)/3, 3)+1
	for _, name := range names {
		distance := editDistance(given, name)
		if len(given) > 1 && strings.HasPrefix(name, given) {
			distance = min(distance, 1)
		}
		if distance < least {
			best, least = name, distance
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean "+form+"?", best)
}

// editDistance counts the letters to insert, remove, replace or exchange with their neighbour to turn a into b.
func editDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j]+cost, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// unknownCommand is the error for a command that does not exist below cmd.
func unknownCommand(cmd *cobra.Command, given string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	return fmt.Errorf("unknown command %q for %q%s", given, cmd.CommandPath(), suggestText(given, names, "%q"))
}

// unknownFlag adds to the error of a flag that does not exist which one may have been meant.
func unknownFlag(cmd *cobra.Command, err error) error {
	missing, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || missing.GetSpecifiedShortnames() != "" {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if hint := suggestText(missing.GetSpecifiedName(), names, "--%s"); hint != "" {
		return fmt.Errorf("%w%s", err, hint)
	}
	return err
}
