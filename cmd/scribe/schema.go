package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/columnar/schema"
	"scribe/consumer"
	"scribe/consumer/columns"
	scribev1 "scribe/proto/scribe/v1"
)

func newSchema() *cobra.Command {
	return newParent(&cobra.Command{
		Use:   "schema",
		Short: "Infer, show, set and check schemas, which map messages to columns",
		Long: `A schema maps the messages of a category to columns for queries. Its file is YAML or JSON:

  format: json               # json (default), ndjson, csv, avro, protobuf or arrow
  on_error: null             # null (default): an invalid value becomes null; reject: its row is skipped
  fields:
    - name: ts
      type: timestamp        # formats: [rfc3339, unix_s, unix_ms, unix_us, unix_ns, "02/Jan/2006:15:04:05 -0700"]
      nullable: false        # default true
      aliases: [time]        # other paths to look at, such as former names
    - name: agent
      type: dictionary       # a string with few distinct values
      path: request.headers."user-agent"
    - {name: status, type: int32, default: 200}
    - {name: zones, type: "map<struct<requests int64, discarded int64>>"}

Types: bool, int32, int64, uint64, float64, decimal(18,2), string, dictionary, binary, date, timestamp, list<T>, map<T>,
struct<name T, name T not null>.

A category keeps all versions of its schema. A new version must read stored messages as the latest version does: it may add fields that
are nullable or have a default, widen types, and rename fields whose old names stay as aliases. Any other change needs --force.`,
		Example: `  scribe schema infer access.log.json > access.yaml
  scribe schema set access access.yaml
  scribe schema show access`,
	}, newSchemaInfer(), newSchemaShow(), newSchemaSet(), newSchemaCheck())
}

// parseHistory reads what a category has as its schema.
func parseHistory(c *scribev1.Category) (*schema.History, error) {
	h, err := schema.ParseHistory(c.GetSchema())
	if err != nil {
		return nil, fmt.Errorf("read the schema of category %s: %w", c.GetName(), err)
	}
	return h, nil
}

// notFound marks an error as one of something that is not there.
func notFound(format string, args ...any) error {
	return &codedError{code: exitNotFound, err: fmt.Errorf(format, args...)}
}

// schemaFormat is a flag -o yaml|json|arrow.
func schemaFormat(cmd *cobra.Command) func() (string, error) {
	return outputFlag(cmd, "yaml", "json", "arrow")
}

// writeSchema writes a schema in a format.
func writeSchema(w io.Writer, s *schema.Schema, format string) error {
	switch format {
	case "json":
		_, err := fmt.Fprintf(w, "%s\n", s.Marshal())
		return err
	case "arrow":
		for _, c := range s.Columns() {
			f := arrow.Field{Name: c.Name, Type: c.Type.Arrow(), Nullable: true}
			if c.Field >= 0 {
				f = s.Fields[c.Field].Arrow()
			}
			null := ""
			if !f.Nullable {
				null = " not null"
			}
			if _, err := fmt.Fprintf(w, "%s: %s%s\n", f.Name, f.Type, null); err != nil {
				return err
			}
		}
		return nil
	default:
		text, err := s.YAML()
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
}

func newSchemaShow() *cobra.Command {
	var version uint32
	var versions bool
	cmd := &cobra.Command{
		Use:   "show CATEGORY",
		Short: "Show a category's schema",
		Long: `Show a category's schema: the latest version, or an earlier one.

If the schema is to be inferred and the category has messages, the command first infers and stores it, as the first query does.

The output of -o yaml and -o json is valid input for "scribe schema set". With -o arrow the command shows the columns of a query's batches with
their Arrow types, including the columns that every category has.`,
		Example: `  scribe schema show access
  scribe schema show access --version 2 -o json
  scribe schema show access --versions`,
		Args: cobra.ExactArgs(1),
	}
	server, format := serverFlag(cmd), schemaFormat(cmd)
	cmd.Flags().Uint32Var(&version, "version", 0, "version number (default: the latest)")
	cmd.Flags().BoolVar(&versions, "versions", false, "list all versions, with the changes of each")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		output, err := format()
		if err != nil {
			return err
		}
		doing := "show the schema of category " + args[0]
		category, err := getCategory(cmd.Context(), *server, doing, args[0])
		if err != nil {
			return err
		}
		h, err := ensureHistory(cmd.Context(), *server, category)
		if err != nil {
			return err
		}
		switch {
		case h.Latest() == nil:
			return notFound("category %s has no schema; create one with: scribe schema infer --category %[1]s --set", args[0])
		case versions:
			return listVersions(cmd.OutOrStdout(), h)
		case version == 0:
			return writeSchema(cmd.OutOrStdout(), h.Latest(), output)
		}
		s := h.Version(version)
		if s == nil {
			return notFound("category %s has no schema version %d: want %d to %d", args[0], version, h.Versions()[0].Version, h.Latest().Version)
		}
		return writeSchema(cmd.OutOrStdout(), s, output)
	}
	return cmd
}

// ensureHistory is a category's schemas, after the first one was inferred if it is to be and can be.
func ensureHistory(ctx context.Context, server string, category *scribev1.Category) (*schema.History, error) {
	h, err := parseHistory(category)
	if err != nil || !h.Infer() {
		return h, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := consumer.New(server, category.GetName())
	if err != nil {
		return nil, err
	}
	h, _, err = columns.EnsureSchema(ctx, c, controlClient(server), category)
	if cerr := c.Close(); err == nil {
		err = cerr
	}
	if errors.Is(err, columns.ErrSchemaPending) {
		return nil, notFound("%w", err)
	}
	return h, err
}

func listVersions(w io.Writer, h *schema.History) error {
	t := newTable(w, "VERSION\tFORMAT\tFIELDS\tCHANGES")
	var before *schema.Schema
	for _, s := range h.Versions() {
		changes := []string{""}
		if before != nil {
			changes = changes[:0]
			for _, c := range schema.Compare(before, s) {
				changes = append(changes, c.String())
			}
			if len(changes) == 0 {
				changes = append(changes, "the text")
			}
		}
		fmt.Fprintf(t, "%d\t%s\t%d\t%s\n", s.Version, s.Format, len(s.Fields), changes[0])
		for _, c := range changes[1:] {
			fmt.Fprintf(t, "\t\t\t%s\n", c)
		}
		before = s
	}
	return t.Flush()
}

func newSchemaSet() *cobra.Command {
	var revision uint64
	var force, dryRun bool
	cmd := &cobra.Command{
		Use:   "set CATEGORY FILE",
		Short: "Set a category's schema from a file, as its next version",
		Long: `Set a category's schema from a file (- for stdin). It becomes the next version, unless it equals the latest version.

It must read stored messages as the latest version does; see "scribe schema --help". With --force any schema is accepted: later queries
read old messages with it, and values that do not fit are null. Running queries keep the version that they started with.`,
		Example: `  scribe schema set access access.yaml --dry-run
  scribe schema set access access.yaml
  scribe schema show access | sed 's/int32/int64/' | scribe schema set access -`,
		Args: cobra.ExactArgs(2),
	}
	server := serverFlag(cmd)
	cmd.Flags().Uint64Var(&revision, "revision", 0, "fail unless the category has this revision")
	cmd.Flags().BoolVar(&force, "force", false, "accept a schema that changes how stored messages are read")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the changes, without making them")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := readSchema(args[1], cmd.InOrStdin())
		if err != nil {
			return err
		}
		doing := "set the schema of category " + args[0]
		category, err := getCategory(cmd.Context(), *server, doing, args[0])
		if err != nil {
			return err
		}
		h, err := parseHistory(category)
		switch {
		case err != nil && !force:
			return fmt.Errorf("%w; --force replaces it", err)
		case err != nil:
			h = nil
		}
		if revision == 0 {
			revision = category.GetRevision() // what is said of changes is of that one
		} else if revision != category.GetRevision() {
			return fmt.Errorf("%s: its revision is %d, not %d: review the current category and try again", doing, category.GetRevision(), revision)
		}
		if same := changesOf(cmd.ErrOrStderr(), h, s); same {
			return nil
		}
		if err := checkCompatible(h, s, force); err != nil || dryRun {
			return err
		}
		return setSchema(cmd, *server, category, s, force)
	}
	return cmd
}

// setSchema stores a schema, and says which version it is.
func setSchema(cmd *cobra.Command, server string, category *scribev1.Category, s *schema.Schema, force bool) error {
	text := string(s.Marshal())
	name := category.GetName()
	res, err := callCell(cmd.Context(), server, "set the schema of category "+name, controlClient(server).UpdateCategory, &scribev1.UpdateCategoryRequest{
		Name: name, Revision: category.GetRevision(), Schema: &text, ForceSchema: force,
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", name, schemaSummary(res.GetCategory()))
	return nil
}

// changesOf says what a schema changes of the newest version, and whether that is nothing at all.
func changesOf(w io.Writer, h *schema.History, s *schema.Schema) (same bool) {
	if h == nil || h.Latest() == nil {
		fmt.Fprintf(w, "it is the first schema, of %s\n", countText(len(s.Fields), "field"))
		return false
	}
	if schema.Same(h.Latest(), s) {
		fmt.Fprintf(w, "it is the same as version %d\n", h.Latest().Version)
		return true
	}
	for _, c := range schema.Compare(h.Latest(), s) {
		mark := "+"
		if !c.Compatible {
			mark = "!"
		}
		fmt.Fprintf(w, "%s %s\n", mark, c)
	}
	return false
}

// checkCompatible is an error when a schema is not compatible with the newest version and not forced either.
func checkCompatible(h *schema.History, s *schema.Schema, force bool) error {
	if h == nil || h.Latest() == nil || force {
		return nil
	}
	if bad := schema.Compare(h.Latest(), s).Incompatible(); len(bad) > 0 {
		return fmt.Errorf("incompatible schema: %s marked with ! would change how stored messages are read by version %d; scribe schema set --force accepts it",
			countText(len(bad), "change"), h.Latest().Version)
	}
	return nil
}

// readSchema reads a schema from a file; - is stdin. A mistake in it is one of the caller's. Files that it refers to are beside it.
func readSchema(name string, stdin io.Reader) (*schema.Schema, error) {
	var text []byte
	var err error
	if name == "-" && stdin != nil {
		text, err = readLimited(stdin)
	} else {
		text, err = readFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s, err := schema.ParseFile(text, func(other string) ([]byte, error) {
		if !filepath.IsAbs(other) {
			other = filepath.Join(filepath.Dir(name), other)
		}
		return readFile(other)
	})
	if err != nil {
		return nil, usageError(fmt.Errorf("%s: %w", name, indentLines(err)))
	}
	return s, nil
}

func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, app.WithoutPath(err)
	}
	text, err := readLimited(file)
	return text, errors.Join(err, file.Close())
}

// readLimited reads a schema.
func readLimited(r io.Reader) ([]byte, error) { return readAtMost(r, "schema", schema.MaxText) }

// readAtMost reads all of something, which has a bound.
func readAtMost(r io.Reader, what string, most int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(text)) > most {
		err = usageError(fmt.Errorf("the %s is too large: want at most %d bytes", what, most))
	}
	return text, err
}

// indentLines shows an error of several lines below what it is about.
func indentLines(err error) error {
	if text := err.Error(); strings.Contains(text, "\n") {
		return &callError{text: "\n  " + strings.ReplaceAll(text, "\n", "\n  "), err: err}
	}
	return err
}

// schemaSummary is a category's schema in a few words.
func schemaSummary(c *scribev1.Category) string {
	h, err := schema.ParseHistory(c.GetSchema())
	switch {
	case err != nil:
		return "can't be read: " + err.Error()
	case h.Infer():
		return "infer"
	case h.Latest() == nil:
		return ""
	}
	s := h.Latest()
	return fmt.Sprintf("version %d: %s, %s", s.Version, s.Format, countText(len(s.Fields), "field"))
}
