package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"scribe/columnar/schema"
	scribev1 "scribe/proto/scribe/v1"
)

type applyFlags struct {
	file   string
	dryRun bool
	diff   bool
}

func newCategoryApply() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create and change categories as a file says",
		Long: `Create and change categories as a file says, and print for each what was done: created, changed or unchanged. The file has YAML or JSON: a
document for each category, divided by ---, or lists of them. "scribe category describe -o yaml" prints such a document.

A document has a name and properties, as describe shows them: owner, retention, shards, shard_by, auto_split, encrypted, delivery, max_message,
quota_per_second, quota_mode, read_quota_per_second, read_requests_per_second, read_quota_mode, priority, window, linger, repeatable, cache, and
schema, which has the keys of a schema file, or is infer. Values are those of the flags of create. A property that is left out stays as it is; a
new category has the default. An unknown key is an error, and nothing is done. Categories that the file does not name stay as they are.

All documents are read and compared before the first change. What only the cell can say (rights, quotas of the control plane, whether a schema fits the one
before) is known when its document is applied: those before it are done then. --dry-run does not ask for it. A category that somebody else changes at the same time is an error; run the command
again then: what was done is unchanged.

Exit codes: 0 if the categories are now as the file says; with --dry-run 0 if nothing would change, 1 if something would, and 2 or more after an error.`,
		Example: `  scribe category apply -f categories.yaml
  scribe category apply -f categories.yaml --dry-run         # prints what would change; exits with 1 if something would
  scribe category describe access -o yaml | sed 's/^retention: .*/retention: 14d/' | scribe category apply -f - --diff`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "file with categories; - is standard input")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "change nothing, print what would change")
	cmd.Flags().BoolVar(&f.diff, "diff", false, "print what changes, property by property")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		err := f.run(cmd, *server)
		if f.dryRun && err != nil && !errors.Is(err, errWouldChange) && exitCode(err) == exitError {
			return usageError(err) // 1 says that something would change
		}
		return err
	}
	return cmd
}

// errWouldChange has no text: what would change was printed.
var errWouldChange = errors.New("")

// categoryChange is what makes a category as a document wants it: nothing, a creation, or an update.
type categoryChange struct {
	name   string
	create *scribev1.Category
	update *scribev1.UpdateCategoryRequest
	// lines say what changes, as a diff does.
	lines []string
}

func (f *applyFlags) run(cmd *cobra.Command, server string) error {
	if f.file == "" {
		return usageError(errors.New("name a file with -f FILE; - is standard input"))
	}
	text, err := f.readFile(cmd.InOrStdin())
	if err != nil {
		return usageError(err)
	}
	wanted, err := parseCategories(f.file, text)
	if err != nil {
		return usageError(err)
	}
	changes := make([]*categoryChange, len(wanted))
	for i, w := range wanted {
		current, err := getCategory(cmd.Context(), server, "read category "+w.name, w.name)
		if err != nil && exitCode(err) != exitNotFound {
			return err
		}
		if err != nil {
			current = nil
		}
		if changes[i], err = w.compare(current); err != nil {
			return usageError(fmt.Errorf("%s: category %s: %w", w.at, w.name, err))
		}
	}
	return f.applyChanges(cmd, server, changes)
}

func (f *applyFlags) readFile(stdin io.Reader) ([]byte, error) {
	if f.file != "-" {
		file, err := os.Open(f.file)
		if err != nil {
			return nil, err
		}
		text, err := readAtMost(file, "file "+f.file, maxDocumentBytes)
		return text, errors.Join(err, file.Close())
	}
	return readAtMost(stdin, "input", maxDocumentBytes)
}

// applyChanges makes the changes, in order, and prints each.
func (f *applyFlags) applyChanges(cmd *cobra.Command, server string, changes []*categoryChange) error {
	out := cmd.OutOrStdout()
	would := false
	for _, c := range changes {
		word := "unchanged"
		var err error
		switch {
		case c.create != nil:
			word = "created"
			if !f.dryRun {
				_, err = callCell(cmd.Context(), server, "create category "+c.name, controlClient(server).CreateCategory, &scribev1.CreateCategoryRequest{Category: c.create})
			}
		case c.update != nil:
			word = "changed"
			if !f.dryRun {
				_, err = callCell(cmd.Context(), server, "update category "+c.name, controlClient(server).UpdateCategory, c.update)
			}
		}
		if err != nil {
			return err
		}
		if f.dryRun && word != "unchanged" {
			would = true
			word = "would be " + word
		}
		fmt.Fprintf(out, "%s %s\n", c.name, word)
		if f.diff || f.dryRun {
			for _, line := range c.lines {
				fmt.Fprintln(out, line)
			}
		}
	}
	if would {
		return &codedError{code: exitError, err: errWouldChange}
	}
	return nil
}

// compare returns what makes a category as wanted; current is nil if there is none.
func (w *wantedCategory) compare(current *scribev1.Category) (*categoryChange, error) {
	c := &categoryChange{name: w.name}
	flags := w.given.flags.Flags()
	if current == nil {
		c.create = w.given.category(w.name)
		c.create.Delivery, c.create.Schema = w.given.delivery.value, w.schema
		for _, k := range documentKeys {
			c.lines = append(c.lines, "+ "+k.key+": "+w.given.text(k.flag))
		}
		if w.schema != "" {
			c.lines = append(c.lines, "+ "+schemaKey+": "+w.schema)
		}
		return c, nil
	}
	has := propertiesOf(current)
	req := &scribev1.UpdateCategoryRequest{Name: w.name, Revision: current.GetRevision()}
	setters := w.given.changesOf(req)
	for _, k := range documentKeys {
		before, after := has.text(k.flag), w.given.text(k.flag)
		if !flags.Changed(k.flag) || before == after {
			continue
		}
		if k.flag == "shards" {
			if w.given.shards < current.GetShards() && (current.IsSplit() || current.GetAutoSplit()) {
				continue // the cell has added the others by itself
			}
			if err := checkShardsChange(current, w.given.shards); err != nil {
				return nil, err
			}
		}
		set, ok := setters[k.flag]
		if !ok {
			return nil, fmt.Errorf("%s is %s and can't become %s: it is of a new category alone", k.key, before, after)
		}
		set()
		c.lines = append(c.lines, "- "+k.key+": "+before, "+ "+k.key+": "+after)
	}
	before, err := currentSchemaText(current)
	if err != nil {
		return nil, err
	}
	if w.schema != "" && w.schema != before && (w.schema != inferSchema || before == "") { // inferred already
		req.Schema = &w.schema
		if before != "" {
			c.lines = append(c.lines, "- "+schemaKey+": "+before)
		}
		c.lines = append(c.lines, "+ "+schemaKey+": "+w.schema)
	}
	if len(c.lines) > 0 {
		c.update = req
	}
	return c, nil
}

// checkShardsChange returns why the cell would refuse another number of shards, so that nothing is done before that is known.
func checkShardsChange(c *scribev1.Category, shards uint32) error {
	switch {
	case c.IsSplit():
		return fmt.Errorf("shards is %d and can't become %d: shards of the category were split; split more of them (scribe category split)", c.GetShards(), shards)
	case shards < c.GetShards():
		return fmt.Errorf("shards is %d and can't become %d: a category never has fewer", c.GetShards(), shards)
	}
	return nil
}

// currentSchemaText returns the newest version of a category's schema as a document's schema becomes text, infer, or nothing.
func currentSchemaText(c *scribev1.Category) (string, error) {
	h, err := schema.ParseHistory(c.GetSchema())
	switch {
	case err != nil:
		return "", fmt.Errorf("read its schema: %w", err)
	case h.Infer():
		return inferSchema, nil
	case h.Latest() == nil:
		return "", nil
	}
	return string(withoutVersion(h.Latest()).Marshal()), nil
}
