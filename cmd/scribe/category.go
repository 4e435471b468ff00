package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/units"
	scribev1 "scribe/proto/scribe/v1"
)

func newCategory() *cobra.Command {
	return newParent(&cobra.Command{
		Use:   "category",
		Short: "Create, list, describe, update and delete categories, and divide their shards",
		Long: `Create, list, describe, update and delete categories, and divide their shards.

Order. Consumers get the messages of one log in the order in which they were persisted. Messages of different logs are out of order by
at most the window. Unless the window is 0, the order may differ from one read to the next, because it depends on arrival. If a program
needs the same order again after a crash, make the category repeatable:

  scribe category create changes --shards 4 --repeatable bound

Then each logical shard has one log for all writers, and all consumers get the messages in the same order, by persisted time, whatever
their start and window. This has two costs: one batcher at a time writes a logical shard (use more shards for more batchers), and a
message is delivered some milliseconds later, when no other log can bring an older one. Open streams are reopened when a category
becomes repeatable or stops being repeatable.

Shards. A category says how a message finds its logical shard (--shard-by):

  sticky      a batch at a time: each producer fills one shard with a batch, then goes on to the next one (default)
  key         by the hash of the message's key: see "scribe produce --key-field"
  field:PATH  by the hash of a field of the message: a path in JSON (client_ip, user.id), or a column of Arrow batches
  explicit    the writer says: "scribe produce --shard"

With key and field:PATH, equal values are in one shard, in the order in which a producer wrote them: "scribe category describe --value" says
in which, "scribe tail --shards" reads it, and a query with WHERE client_ip = '...' reads that shard alone. A message without the key or field goes where a sticky one would. When shards are
added (update --shards), values move to other shards and what is stored stays: readers of one value then read a shard more for each layout
that the category had. Twice as many shards divide each shard in two.

A single shard with too much traffic is split in two ("scribe category split"); its messages keep their order by key, and so they do when the
halves are merged again. With --auto-split the cell splits shards by itself that have one log (exactly_once, or repeatable bound) and more
traffic than one batcher should have; it merges none. "scribe category shards" shows the shards and what is written to them.`,
		Example: `  scribe category create clicks --shards 8 --shard-by key
  scribe category create access --shards 8 --shard-by field:client_ip
  scribe category create access --retention 7d
  scribe category list
  scribe category update access --quota 10MiB`,
	}, newCategoryCreate(), newCategoryList(), newCategoryDescribe(), newCategoryUpdate(), newCategoryApply(), newCategoryDelete(),
		newCategoryShards(), newCategorySplit(), newCategoryMerge())
}

// categoryFlags are the properties that create and update share.
type categoryFlags struct {
	owner           string
	retention       units.Duration
	shards          uint32
	shardBy         shardBy
	delivery        string
	maxMessageBytes units.Bytes
	quota           units.Bytes
	quotaMode       enumFlag[scribev1.QuotaMode]
	readQuota       units.Bytes
	readRequests    uint64
	readQuotaMode   enumFlag[scribev1.QuotaMode]
	priority        enumFlag[scribev1.Priority]
	window          durationOrFlag
	linger          durationOrFlag
	repeatable      enumFlag[scribev1.Repeatability]
	cache           cachePolicy
	schema          string
	autoSplit       bool
	encrypted       bool
}

func (f *categoryFlags) addFlags(cmd *cobra.Command) {
	f.retention, f.shards, f.maxMessageBytes = units.Duration(72*time.Hour), 1, 16<<20
	f.shardBy = shardBy{rule: scribev1.ShardBy_SHARD_BY_STICKY}
	f.window.without, f.linger.without = "none", "auto"
	f.quotaMode = enumFlag[scribev1.QuotaMode]{scribev1.QuotaMode_QUOTA_MODE_BLOCK, "mode"}
	f.readQuotaMode = f.quotaMode
	f.priority = enumFlag[scribev1.Priority]{scribev1.Priority_PRIORITY_NORMAL, "priority"}
	f.repeatable = enumFlag[scribev1.Repeatability]{scribev1.Repeatability_REPEATABILITY_NONE, "kind"}
	fs := cmd.Flags()
	fs.StringVar(&f.owner, "owner", "", "team or person responsible for the category")
	fs.Var(&f.retention, "retention", "how long messages stay readable, 1m to 3650d")
	fs.Uint32Var(&f.shards, "shards", f.shards, "number of logical shards, 1 to 10000; can only grow")
	fs.Var(&f.shardBy, "shard-by", "how messages find their logical shard: sticky (a batch at a time), key, field:PATH (a path in JSON, or a column) or explicit (writers choose)")
	fs.Var(&f.maxMessageBytes, "max-message", "largest message, at most 32MiB")
	fs.Var((*sizeWithUnit)(&f.quota), "quota", "bytes per second that all writers together may write, for example 10MiB; 0 = no limit")
	fs.Var(&f.quotaMode, "quota-mode", "what happens to writes over the quota: block, throttle or sample")
	fs.Var(&f.readQuota, "read-quota", "bytes per second, uncompressed, that all readers together may read, for example 50MiB; 0 = no limit")
	fs.Uint64Var(&f.readRequests, "read-requests", 0, "fetches per second that all readers together may make; 0 = no limit")
	fs.Var(&f.readQuotaMode, "read-quota-mode", "what happens to reads over these quotas: block, throttle or sample (queries are blocked)")
	fs.Var(&f.priority, "priority", "whose messages are refused first when the cell is full, those of the lowest: low, normal, high or critical")
	fs.Var(&f.repeatable, "repeatable", "none; bound: one log per logical shard, and one order for all readers; or sequenced: an additional log that orders all messages, only for a new category")
	fs.Var(&f.cache, "cache", "cache policy of read proxies: default, or for example memory=never,memcached=reused,age=4h; tiers take always, never or reused (payloads that are read twice)")
	fs.Var(&f.window, "window", "default ordering window of consumers; none = unbounded")
	fs.Var(&f.linger, "linger", "how long messages that no writer waits for may be held back so that many go together, at most 5m; auto = longer, to 3s, the more categories a program writes to")
	fs.BoolVar(&f.autoSplit, "auto-split", false, "split logical shards that have one log and more traffic than one batcher should have; with --shard-by key or field")
	fs.BoolVar(&f.encrypted, "encrypted", false, "encrypt payloads before they are stored; batchers and read proxies need --encryption-key-file")
	fs.StringVar(&f.schema, "schema", "", "schema file, which maps messages to columns (see scribe schema --help), or infer: from the first messages")
}

// checkZeros finds properties that were given as 0, which a new category would have the default for.
func (f *categoryFlags) checkZeros(cmd *cobra.Command) error {
	var errs []error
	for _, property := range []struct {
		name string
		zero bool
	}{{"max-message", f.maxMessageBytes == 0}, {"retention", f.retention == 0}, {"shards", f.shards == 0}} {
		if property.zero && cmd.Flags().Changed(property.name) {
			errs = append(errs, fmt.Errorf("invalid value 0 for --%s: want more than 0", property.name))
		}
	}
	return errors.Join(errs...)
}

// schemaText returns what --schema names: a file's schema, or the word infer.
func (f *categoryFlags) schemaText() (string, error) {
	if f.schema == "" || f.schema == "infer" {
		return f.schema, nil
	}
	s, err := readSchema(f.schema, nil)
	if err != nil {
		return "", fmt.Errorf("--schema: %w", err)
	}
	return string(s.Marshal()), nil
}

// enumFlag is a flag whose values are the names of an enumeration.
type enumFlag[E scribev1.Enum] struct {
	value E
	kind  string // of the values, for help
}

// String implements pflag.Value.
func (f *enumFlag[E]) String() string { return scribev1.EnumName(f.value) }

// Set implements pflag.Value.
func (f *enumFlag[E]) Set(s string) (err error) {
	f.value, err = scribev1.ParseEnum[E](s)
	return err
}

// Type implements pflag.Value.
func (f *enumFlag[E]) Type() string { return f.kind }

// durationOrFlag is a flag for a duration, or a word for none.
type durationOrFlag struct {
	duration *units.Duration
	without  string
}

// String implements pflag.Value.
func (f *durationOrFlag) String() string {
	if f.duration == nil {
		return f.without
	}
	return f.duration.String()
}

// Set implements pflag.Value.
func (f *durationOrFlag) Set(s string) error {
	if s == f.without {
		f.duration = nil
		return nil
	}
	d, err := units.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%w; or %s", err, f.without)
	}
	f.duration = &d
	return nil
}

// Type implements pflag.Value.
func (f *durationOrFlag) Type() string { return "duration" }

// toProto is the duration as a category has it; nil if there is none.
func (f *durationOrFlag) toProto() *durationpb.Duration {
	if f.duration == nil {
		return nil
	}
	return durationpb.New(f.duration.Std())
}

func newCategoryCreate() *cobra.Command {
	var f categoryFlags
	var ifNotExists bool
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a category",
		Example: `  scribe category create access
  scribe category create payments --retention 30d --shards 16 --delivery exactly_once --owner billing
  scribe category create changes --shards 4 --repeatable bound
  scribe category create clicks --shards 8 --shard-by key
  scribe category create debug --quota 10MiB --quota-mode sample
  scribe category create access --read-quota 50MiB --read-quota-mode throttle
  scribe category create sensors.cold --linger 1m
  scribe category create web --schema web.yaml
  scribe category create events --schema infer
  scribe category create dumps --cache memcached=never`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	f.addFlags(cmd)
	cmd.Flags().StringVar(&f.delivery, "delivery", "at_least_once", "best_effort, at_least_once or exactly_once")
	cmd.Flags().BoolVar(&ifNotExists, "if-not-exists", false, "succeed if the category exists, whatever its properties")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		delivery, err := scribev1.ParseEnum[scribev1.Delivery](f.delivery)
		if err != nil {
			return usageError(fmt.Errorf("invalid value %q for --delivery: %w", f.delivery, err))
		}
		if err := f.checkZeros(cmd); err != nil {
			return usageError(err)
		}
		schema, err := f.schemaText()
		if err != nil {
			return err
		}
		c := f.category(args[0])
		c.Schema, c.Delivery = schema, delivery
		res, err := callCell(cmd.Context(), *server, "create category "+args[0], controlClient(*server).CreateCategory,
			&scribev1.CreateCategoryRequest{Category: c, IfNotExists: ifNotExists})
		if err != nil {
			return err
		}
		return printJSON(cmd.OutOrStdout(), describeCategory(res.GetCategory()))
	}
	return cmd
}

// category returns a new category with the properties, without its schema and delivery.
func (f *categoryFlags) category(name string) *scribev1.Category {
	return &scribev1.Category{
		Name: name, Owner: f.owner, Retention: durationpb.New(f.retention.Std()), Shards: f.shards,
		MaxMessageBytes: clampUint32(f.maxMessageBytes), QuotaBytesPerSecond: uint64(f.quota),
		QuotaMode: f.quotaMode.value, ReadQuotaBytesPerSecond: uint64(f.readQuota), ReadQuotaRequestsPerSecond: f.readRequests,
		ReadQuotaMode: f.readQuotaMode.value, Priority: f.priority.value, OrderingWindow: f.window.toProto(), Linger: f.linger.toProto(), Repeatable: f.repeatable.value,
		Cache: f.cache.policy, ShardBy: f.shardBy.rule, ShardField: f.shardBy.field, AutoSplit: f.autoSplit, Encrypted: f.encrypted,
	}
}

func newCategoryList() *cobra.Command {
	var prefix string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List categories by name",
		Long:  "List categories by name: a table, or with -o json an object per line.",
		Example: `  scribe category list --prefix web.
  scribe category list -o json`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	cmd.Flags().StringVar(&prefix, "prefix", "", "list only names with this prefix")
	format := tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		if !asJSON {
			fmt.Fprintln(w, "NAME\tID\tSHARDS\tDELIVERY\tRETENTION\tQUOTA\tREAD QUOTA\tOWNER")
		}
		err = eachCategory(cmd.Context(), *server, prefix, func(c *scribev1.Category) error {
			if asJSON {
				return printLines(cmd.OutOrStdout(), describeCategory(c))
			}
			_, err := fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%v\t%s\t%s\t%s\n", c.GetName(), c.GetId(), c.GetShards(), scribev1.EnumName(c.GetDelivery()),
				units.Duration(c.GetRetention().AsDuration()), quotaText(c), readQuotaText(c), c.GetOwner())
			return err
		})
		if err != nil {
			return err
		}
		return w.Flush()
	}
	return cmd
}

func newCategoryDescribe() *cobra.Command {
	var value string
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Show a category as JSON, or as YAML that scribe category apply takes",
		Example: `  scribe category describe access
  scribe category describe access -o yaml > access.yaml       # edit it, then: scribe category apply -f access.yaml
  scribe category describe clicks --value user-17     # also the logical shards that may hold the key user-17, for scribe tail --shards`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	format := outputFlag(cmd, "json", "yaml")
	cmd.Flags().StringVar(&value, "value", "", "a key, or a value of the field, by which the category places messages: show the logical shards that may hold it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		output, err := format()
		if err != nil {
			return err
		}
		category, err := getCategory(cmd.Context(), *server, "describe category "+args[0], args[0])
		if err != nil {
			return err
		}
		if output == "yaml" {
			text, err := categoryDocument(category)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		}
		shown := describeCategory(category)
		if cmd.Flags().Changed("value") {
			if shown.ValueShards, err = shardsOfValue(category, value); err != nil {
				return usageError(err)
			}
		}
		return printJSON(cmd.OutOrStdout(), shown)
	}
	return cmd
}

func newCategoryUpdate() *cobra.Command {
	var f categoryFlags
	var revision uint64
	var force, rotate bool
	cmd := &cobra.Command{
		Use:   "update NAME",
		Short: "Change the given properties of a category",
		Example: `  scribe category update access --retention 7d
  scribe category update access --shards 4 --revision 17
  scribe category update access --shards 8 --shard-by field:client_ip
  scribe category update access --quota 10MiB --quota-mode throttle --window none
  scribe category update access --cache memcached=reused,age=30m
  scribe category update access --cache default
  scribe category update access --encrypted
  scribe category update access --schema access.yaml`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	f.addFlags(cmd)
	cmd.Flags().Uint64Var(&revision, "revision", 0, "only if the category has this revision")
	cmd.Flags().BoolVar(&rotate, "rotate-key", false, "encrypt new payloads with a new key; the category has to be encrypted")
	cmd.Flags().BoolVar(&force, "force-schema", false, "accept the schema even if it changes how stored messages are read; an empty --schema then removes all versions")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &scribev1.UpdateCategoryRequest{Name: args[0], Revision: revision, ForceSchema: force, RotateKey: rotate}
		var err error
		changes := f.changesOf(req)
		changes["schema"] = func() {
			req.Schema = new(string)
			*req.Schema, err = f.schemaText()
		}
		maps.DeleteFunc(changes, func(property string, _ func()) bool { return !cmd.Flags().Changed(property) })
		if len(changes) == 0 && !rotate {
			return usageError(errors.New("nothing to change: name a property, such as --retention 7d"))
		}
		for _, change := range changes {
			change()
		}
		if err != nil {
			return err
		}
		res, err := callCell(cmd.Context(), *server, "update category "+args[0], controlClient(*server).UpdateCategory, req)
		if err != nil {
			return err
		}
		return printJSON(cmd.OutOrStdout(), describeCategory(res.GetCategory()))
	}
	return cmd
}

// changesOf returns what puts the property of each flag into a request, for all but the schema.
func (f *categoryFlags) changesOf(req *scribev1.UpdateCategoryRequest) map[string]func() {
	return map[string]func(){
		"owner":           func() { req.Owner = &f.owner },
		"retention":       func() { req.Retention = durationpb.New(f.retention.Std()) },
		"shards":          func() { req.Shards = &f.shards },
		"shard-by":        func() { req.ShardBy, req.ShardField = &f.shardBy.rule, &f.shardBy.field },
		"max-message":     func() { req.MaxMessageBytes = new(clampUint32(f.maxMessageBytes)) },
		"quota":           func() { req.QuotaBytesPerSecond = new(uint64(f.quota)) },
		"quota-mode":      func() { req.QuotaMode = &f.quotaMode.value },
		"read-quota":      func() { req.ReadQuotaBytesPerSecond = new(uint64(f.readQuota)) },
		"read-requests":   func() { req.ReadQuotaRequestsPerSecond = &f.readRequests },
		"read-quota-mode": func() { req.ReadQuotaMode = &f.readQuotaMode.value },
		"priority":        func() { req.Priority = &f.priority.value },
		"repeatable":      func() { req.Repeatable = &f.repeatable.value },
		"cache":           func() { req.Cache = cmp.Or(f.cache.policy, &scribev1.CachePolicy{}) }, // an empty one removes it
		"window":          func() { req.OrderingWindow, req.UnboundedWindow = f.window.toProto(), f.window.duration == nil },
		"auto-split":      func() { req.AutoSplit = &f.autoSplit },
		"encrypted":       func() { req.Encrypted = &f.encrypted },
		"linger":          func() { req.Linger, req.AutoLinger = f.linger.toProto(), f.linger.duration == nil },
	}
}

func newCategoryDelete() *cobra.Command {
	var revision uint64
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a category, with its messages",
		Long: `Delete a category. This can't be undone. If standard input is a terminal, the command asks for the category's name first.

Its messages can no longer be read, and its streams end. Its blobs and log records stay in the stores, unreachable, until retention
removes them. Later writes are refused; on a server that creates categories on first use, they create the category again.

Its logs are retired in the background, so that a writer that does not know of the deletion can't append to them. Then the name can be
used again. This takes moments while the metadata logs are available; until then a create waits, and fails with exit code 5 after some
seconds. The new category has a new id and no data of the old one.`,
		Example: `  scribe category delete access
  scribe category delete access --yes     # asks nothing`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.Flags().Uint64Var(&revision, "revision", 0, "only if the category has this revision")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask on a terminal")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if in := cmd.InOrStdin(); !yes && isTerminal(in) {
			if err := confirmName(cmd.Context(), in, cmd.ErrOrStderr(), "delete category "+args[0]+" with all its messages", args[0]); err != nil {
				return err
			}
		}
		req := &scribev1.DeleteCategoryRequest{Name: args[0], Revision: revision}
		if _, err := callCell(cmd.Context(), *server, "delete category "+args[0], controlClient(*server).DeleteCategory, req); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "deleted %s: its messages can no longer be read; retention removes the stored data\n", args[0])
		return nil
	}
	return cmd
}

// categoryJSON is how a category is shown: names as on the command line, quantities as people write them.
type categoryJSON struct {
	Name            string          `json:"name"`
	ID              uint32          `json:"id"`
	Revision        uint64          `json:"revision"`
	Owner           string          `json:"owner,omitempty"`
	Retention       units.Duration  `json:"retention"`
	Shards          uint32          `json:"shards"`
	ShardBy         string          `json:"shard_by"`
	FormerLayouts   []string        `json:"former_layouts,omitempty"`
	ValueShards     []uint32        `json:"value_shards,omitempty"`
	AutoSplit       bool            `json:"auto_split,omitempty"`
	Encrypted       bool            `json:"encrypted,omitempty"`
	KeyGeneration   uint32          `json:"key_generation,omitempty"`
	Delivery        string          `json:"delivery"`
	MaxMessageBytes units.Bytes     `json:"max_message"`
	Quota           units.Bytes     `json:"quota_per_second,omitempty"`
	QuotaMode       string          `json:"quota_mode,omitempty"`
	ReadQuota       units.Bytes     `json:"read_quota_per_second,omitempty"`
	ReadRequests    uint64          `json:"read_requests_per_second,omitempty"`
	ReadQuotaMode   string          `json:"read_quota_mode,omitempty"`
	Priority        string          `json:"priority,omitempty"`
	Window          *units.Duration `json:"window,omitempty"`
	Linger          *units.Duration `json:"linger,omitempty"`
	Repeatable      string          `json:"repeatable,omitempty"`
	Cache           string          `json:"cache,omitempty"`
	Schema          string          `json:"schema,omitempty"`
	CreatedAt       time.Time       `json:"created_at"`
	UpdatedAt       time.Time       `json:"updated_at"`
}

func describeCategory(c *scribev1.Category) categoryJSON {
	out := categoryJSON{
		Name: c.GetName(), ID: c.GetId(), Revision: c.GetRevision(), Owner: c.GetOwner(),
		Retention: units.Duration(c.GetRetention().AsDuration()), Shards: c.GetShards(), Delivery: scribev1.EnumName(c.GetDelivery()),
		ShardBy: shardByText(c.GetShardBy(), c.GetShardField()), FormerLayouts: formerLayoutTexts(c), AutoSplit: c.GetAutoSplit(),
		Encrypted: c.GetEncrypted(), KeyGeneration: c.GetKeyGeneration(),
		MaxMessageBytes: units.Bytes(c.GetMaxMessageBytes()), Quota: units.Bytes(c.GetQuotaBytesPerSecond()), Schema: schemaSummary(c), //nolint:gosec // a quota beyond int64 is none
		CreatedAt: timeOf(c.GetCreatedAt()), UpdatedAt: timeOf(c.GetUpdatedAt()),
	}
	if c.GetQuotaBytesPerSecond() > 0 {
		out.QuotaMode = quotaModeName(c.GetQuotaMode())
	}
	if c.GetReadQuotaBytesPerSecond() > 0 || c.GetReadQuotaRequestsPerSecond() > 0 {
		out.ReadQuota, out.ReadRequests = units.Bytes(c.GetReadQuotaBytesPerSecond()), c.GetReadQuotaRequestsPerSecond() //nolint:gosec // a quota beyond int64 is none
		out.ReadQuotaMode = quotaModeName(c.GetReadQuotaMode())
	}
	if p := c.GetPriority(); p > scribev1.Priority_PRIORITY_UNSPECIFIED && p != scribev1.Priority_PRIORITY_NORMAL {
		out.Priority = scribev1.EnumName(p)
	}
	if r := c.GetRepeatable(); r > scribev1.Repeatability_REPEATABILITY_NONE {
		out.Repeatable = scribev1.EnumName(r)
	}
	if p := c.GetCache(); p != nil {
		out.Cache = cachePolicyText(p)
	}
	if c.GetOrderingWindow() != nil {
		out.Window = new(units.Duration(c.GetOrderingWindow().AsDuration()))
	}
	if c.GetLinger() != nil {
		out.Linger = new(units.Duration(c.GetLinger().AsDuration()))
	}
	return out
}

// quotaModeName is the name of a mode. Categories from before there were modes have none, which is block.
func quotaModeName(m scribev1.QuotaMode) string {
	return scribev1.EnumName(cmp.Or(m, scribev1.QuotaMode_QUOTA_MODE_BLOCK))
}

// quotaText is a quota for people.
func quotaText(c *scribev1.Category) string {
	if c.GetQuotaBytesPerSecond() == 0 {
		return "-"
	}
	return fmt.Sprintf("%v/s %s", units.Bytes(c.GetQuotaBytesPerSecond()), quotaModeName(c.GetQuotaMode())) //nolint:gosec // a quota beyond int64 is none
}

// readQuotaText is the quotas for reading for people.
func readQuotaText(c *scribev1.Category) string {
	text := limitsText(c.GetReadQuotaBytesPerSecond(), c.GetReadQuotaRequestsPerSecond())
	if text == "-" {
		return text
	}
	return text + " " + quotaModeName(c.GetReadQuotaMode())
}

// limitsText is limits of bytes and requests a second for people.
func limitsText(bytes, requests uint64) string {
	var limits []string
	if bytes > 0 {
		limits = append(limits, fmt.Sprintf("%v/s", units.Bytes(bytes))) //nolint:gosec // a quota beyond int64 is none
	}
	if requests > 0 {
		limits = append(limits, fmt.Sprintf("%d requests/s", requests))
	}
	if len(limits) == 0 {
		return "-"
	}
	return strings.Join(limits, ", ")
}

// clampUint32 keeps a size that no field can hold above every limit, so that the server refuses it with its own words.
func clampUint32(b units.Bytes) uint32 { return uint32(min(int64(b), 1<<32-1)) }

// cachePolicy is a flag for how read proxies cache a category: default, or what is said of their memory, of memcached, and of the age up
// to which memcached is used.
type cachePolicy struct{ policy *scribev1.CachePolicy }

// String implements pflag.Value.
func (p *cachePolicy) String() string { return cachePolicyText(p.policy) }

// Set implements pflag.Value.
func (p *cachePolicy) Set(s string) error {
	if s == "default" {
		p.policy = nil
		return nil
	}
	policy := &scribev1.CachePolicy{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if err := setCache(policy, name, value); err != nil {
			return err
		}
	}
	p.policy = policy
	return nil
}

func setCache(policy *scribev1.CachePolicy, name, value string) error {
	switch name {
	case "memory", "memcached":
		mode, err := scribev1.ParseEnum[scribev1.CacheMode](value)
		if err != nil {
			return fmt.Errorf("%s: invalid value %q: %w", name, value, err)
		}
		if name == "memory" {
			policy.Memory = mode
		} else {
			policy.Memcached = mode
		}
	case "age":
		age, err := units.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("age: %w", err)
		}
		policy.MemcachedAge = durationpb.New(age.Std())
	default:
		return fmt.Errorf("invalid cache policy %q: want memory=, memcached= or age=, or default alone", name)
	}
	return nil
}

// Type implements pflag.Value.
func (p *cachePolicy) Type() string { return "policy" }

// cachePolicyText is a policy on the command line.
func cachePolicyText(p *scribev1.CachePolicy) string {
	var parts []string
	for _, tier := range []struct {
		name string
		mode scribev1.CacheMode
	}{{"memory", p.GetMemory()}, {"memcached", p.GetMemcached()}} {
		if tier.mode != scribev1.CacheMode_CACHE_MODE_UNSPECIFIED {
			parts = append(parts, tier.name+"="+scribev1.EnumName(tier.mode))
		}
	}
	if p.GetMemcachedAge() != nil {
		parts = append(parts, "age="+units.Duration(p.GetMemcachedAge().AsDuration()).String())
	}
	if len(parts) == 0 {
		return "default"
	}
	return strings.Join(parts, ",")
}
