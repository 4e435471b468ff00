package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"scribe/internal/base/units"
	"scribe/internal/format/pointer"
)

// Config is what one process runs. It is read from YAML; flags and environment variables are laid over it by cmd/scribe.
type Config struct {
	// Roles of the process.
	Roles []Role `yaml:"roles"`
	// Data is the folder of everything that the process keeps: categories, logs, blobs on files, copies of metadata.
	Data string `yaml:"data"`
	// Listen is the TCP address that everything is served on, host:port; port 0 takes a free one.
	Listen string `yaml:"listen"`
	// Socket is the path of a Unix socket to serve on as well; empty = none.
	Socket string `yaml:"socket"`
	// Advertise is the base URL under which other processes reach this one; empty = http:// and the listening address.
	Advertise string `yaml:"advertise"`
	// ID names the process in the membership; empty = the host's name and a random part, kept in the data folder.
	ID string `yaml:"id"`
	// Control is the control plane's base URL; for processes without that role.
	Control string `yaml:"control"`
	// Metalog is the base URL of the process that serves the metadata logs; for batchers, read streams, collectors and sequencers in processes
	// without that role. A control plane that does without takes the one that is a member of the cell.
	Metalog string `yaml:"metalog"`
	// Upstream is where scribed forwards to: the base URL of a write proxy, or of any process of the cell; empty with a
	// writeproxy in the same process.
	Upstream string `yaml:"upstream"`
	// Spool is the agent's disk buffer, Inputs its sources beside the producer library.
	Spool  SpoolConfig  `yaml:"spool"`
	Inputs InputsConfig `yaml:"inputs"`
	// Blobs is where payloads are kept.
	Blobs BlobConfig `yaml:"blobs"`
	// Region is the name of the region of this cell, in pointers to what it stores; the same in all its processes. Empty where there is
	// one region.
	Region string `yaml:"region"`
	// Regions are others, whose payloads a read proxy serves here.
	Regions []RegionConfig `yaml:"regions"`
	// ReadProxy says how payloads are fetched, cached and handed out.
	ReadProxy ReadProxyConfig `yaml:"read_proxy"`
	// Collector says when retention removes things.
	Collector CollectorConfig `yaml:"collector"`
	// Streams is about consumers' streams of pointers.
	Streams StreamsConfig `yaml:"streams"`
	// Gateway is about queries over the network.
	Gateway GatewayConfig `yaml:"gateway"`
	// AutoCreate creates a category on the first write to it.
	AutoCreate bool `yaml:"auto_create"`
	// Limits bound memory.
	Limits Limits `yaml:"limits"`
	// FlushFloor is the least time between two flushes of a batcher; it bounds what requests to the store cost. Negative = 0 on
	// files and 250 ms on S3.
	FlushFloor *units.Duration `yaml:"flush_floor"`
	// ShutdownTimeout is how long SIGTERM waits for what was accepted to become durable.
	ShutdownTimeout units.Duration `yaml:"shutdown_timeout"`
	// LeaseTTL is how long the process stays a member of the cell without a heartbeat.
	LeaseTTL units.Duration `yaml:"lease_ttl"`
	// Log says what is written to standard error.
	Log LogConfig `yaml:"log"`
	// Pprof serves profiles under /debug/pprof/.
	Pprof bool `yaml:"pprof"`
}

// BlobConfig says where payloads are kept.
type BlobConfig struct {
	// Kind is "file" or "s3".
	Kind string `yaml:"kind"`
	// Path is the folder of a file store; empty = blobs in the data folder.
	Path string `yaml:"path"`
	// S3 is the store of kind s3.
	S3 S3Config `yaml:"s3"`
}

// S3Config names a bucket of an S3-compatible store.
type S3Config struct {
	// Endpoint is a URL, http://host:port or https://host.
	Endpoint string `yaml:"endpoint"`
	// Bucket exists already, or is created at the start with CreateBucket.
	Bucket       string `yaml:"bucket"`
	CreateBucket bool   `yaml:"create_bucket"`
	// Prefix stands before every key.
	Prefix string `yaml:"prefix"`
	// Region is the bucket's; empty lets the server say.
	Region string `yaml:"region"`
	// AccessKey and SecretKey sign requests. Better given in the environment than in a file.
	AccessKey string `yaml:"access_key"`
	SecretKey string `yaml:"secret_key"`
}

// Limits bound memory in bytes.
type Limits struct {
	// WriteMemory is what the write proxy and the agent hold of requests in flight, each.
	WriteMemory units.Bytes `yaml:"write_memory"`
	// BatchMemory is what the batcher holds before it is durable.
	BatchMemory units.Bytes `yaml:"batch_memory"`
	// ReadCache is what the read proxy caches.
	ReadCache units.Bytes `yaml:"read_cache"`
	// ReadMemory is what the read proxy holds of requests that it serves with their answers, and of payloads that it fetches, each.
	ReadMemory units.Bytes `yaml:"read_memory"`
	// MetadataCache is the metadata engine's.
	MetadataCache units.Bytes `yaml:"metadata_cache"`
}

// LogConfig says what is logged.
type LogConfig struct {
	// Level is debug, info, warn or error.
	Level string `yaml:"level"`
	// Format is text or json.
	Format string `yaml:"format"`
}

// DefaultConfig is that of `scribe up`: every role on files, creating categories on first use.
func DefaultConfig() Config {
	return Config{
		Roles:      slices.Clone(AllRoles),
		Data:       "./scribe-data",
		Listen:     "127.0.0.1:7420",
		Spool:      SpoolConfig{MaxBytes: 10 << 30, Segment: 32 << 20, Ballast: 16 << 20, DeadLetters: 256 << 20},
		Blobs:      BlobConfig{Kind: "file"},
		ReadProxy:  defaultReadProxy(),
		Collector:  defaultCollector(),
		Streams:    defaultStreams(),
		Gateway:    defaultGateway(),
		AutoCreate: true,
		Limits: Limits{
			WriteMemory:   256 << 20,
			BatchMemory:   256 << 20,
			ReadCache:     256 << 20,
			ReadMemory:    256 << 20,
			MetadataCache: 64 << 20,
		},
		ShutdownTimeout: units.Duration(30 * time.Second),
		LeaseTTL:        units.Duration(10 * time.Second),
		Log:             LogConfig{Level: "info", Format: "text"},
	}
}

// Load lays the YAML of a file over c. Fields that it does not know are errors.
func (c *Config) Load(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	return nil
}

// Validate reports every fault at once.
func (c *Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if len(c.Roles) == 0 {
		fault("roles: none given; the roles are %s, or all", roleList())
	}
	for _, r := range c.Roles {
		if !slices.Contains(AllRoles, r) {
			fault("roles: %q is unknown; the roles are %s", r, roleList())
		}
	}
	if c.Data == "" {
		fault("data: a folder is needed")
	}
	if _, port, err := net.SplitHostPort(c.Listen); err != nil || port == "" {
		fault("listen: %q is not an address of the form host:port", c.Listen)
	}
	checkURL := func(field, value string, needed bool, why string) {
		switch {
		case value == "" && needed:
			fault("%s: needed, since %s", field, why)
		case value == "":
		case !isURL(value):
			fault("%s: %q is not a URL of the form http://host:port", field, value)
		}
	}
	checkURL("advertise", c.Advertise, false, "")
	checkURL("control", c.Control, c.needsControl() && !c.Has(ControlPlane), "the process has no controlplane role")
	checkURL("metalog", c.Metalog, c.needsMetalog() && !c.Has(Metalog), "the process has no metalog role")
	checkURL("upstream", c.Upstream, c.Has(Scribed) && !c.Has(WriteProxy), "scribed needs somewhere to forward to")
	if c.needsBlobs() {
		faults = append(faults, c.Blobs.faults()...)
	}
	faults = append(faults, c.inputFaults()...)
	if err := pointer.ValidateRegion(c.Region); err != nil {
		fault("region: %w", err)
	}
	faults = append(faults, c.readProxyFaults()...)
	faults = append(append(faults, c.roleFaults()...), c.flightFault())
	for field, v := range map[string]units.Bytes{
		"limits.write_memory": c.Limits.WriteMemory, "limits.batch_memory": c.Limits.BatchMemory,
		"limits.read_cache": c.Limits.ReadCache, "limits.metadata_cache": c.Limits.MetadataCache,
	} {
		if v < minMemory {
			fault("%s: %v is too little, the least is %v", field, v, minMemory)
		}
	}
	if c.ShutdownTimeout <= 0 {
		fault("shutdown_timeout: must be above zero")
	}
	if c.LeaseTTL.Std() < 100*time.Millisecond || c.LeaseTTL.Std() > 5*time.Minute {
		fault("lease_ttl: %v is outside 100ms to 5m", c.LeaseTTL)
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		fault("log.level: %q is none of debug, info, warn, error", c.Log.Level)
	}
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		fault("log.format: %q is none of text, json", c.Log.Format)
	}
	faults = slices.DeleteFunc(faults, func(err error) bool { return err == nil })
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	// Two roles may say the same of what they share.
	faults = slices.CompactFunc(faults, func(a, b error) bool { return a.Error() == b.Error() })
	return errors.Join(faults...)
}

// MemoryLimit is how much memory the garbage collector should let the process have, in bytes: twice what its roles may hold, since
// they hold requests both as they arrive and as they leave, and what a process takes that holds nothing. It keeps garbage from adding
// to that.
func (c *Config) MemoryLimit() int64 {
	const idle = 64 << 20
	// How many queries are taken to hold all that they may at the same time. If more do, garbage is collected more often.
	const fullQueries = 2
	sum := units.Bytes(0)
	for role, n := range map[Role]units.Bytes{
		Scribed: c.Limits.WriteMemory, WriteProxy: c.Limits.WriteMemory, Batcher: c.Limits.BatchMemory,
		ReadProxy: c.Limits.ReadCache + c.Limits.ReadMemory, Metalog: c.Limits.MetadataCache,
		ReadStream: c.Streams.Memory, Gateway: fullQueries * c.Gateway.QueryMemory,
	} {
		if c.Has(role) {
			sum += n
		}
	}
	return idle + 2*int64(sum)
}

// minMemory is the least that a role can work with: one frame of the largest size on its way in and out.
const minMemory units.Bytes = 8 << 20

// Validate reports every fault at once.
func (b *BlobConfig) Validate() error { return errors.Join(b.faults()...) }

func (b *BlobConfig) faults() []error {
	switch b.Kind {
	case "file":
		return nil
	case "s3":
		var faults []error
		if !isURL(b.S3.Endpoint) {
			faults = append(faults, fmt.Errorf("blobs.s3.endpoint: %q is not a URL of the form http://host:port", b.S3.Endpoint))
		}
		if b.S3.Bucket == "" {
			faults = append(faults, errors.New("blobs.s3.bucket: needed"))
		}
		if b.S3.AccessKey == "" || b.S3.SecretKey == "" {
			faults = append(faults, errors.New("blobs.s3.access_key and blobs.s3.secret_key: needed; SCRIBE_S3_ACCESS_KEY and SCRIBE_S3_SECRET_KEY in the environment keep them out of files"))
		}
		return faults
	default:
		return []error{fmt.Errorf("blobs.kind: %q is none of file, s3", b.Kind)}
	}
}

// Has reports whether the process has a role.
func (c *Config) Has(r Role) bool { return slices.Contains(c.Roles, r) }

func (c *Config) hasAny(roles ...Role) bool { return slices.ContainsFunc(roles, c.Has) }

// needsControl: every process is a member of its cell; but an agent, whose upstream answers for it.
func (c *Config) needsControl() bool { return c.needsCategories() || c.hasAny(ControlPlane, Metalog) }

func (c *Config) needsCategories() bool {
	return c.hasAny(Batcher, WriteProxy, ReadStream, ReadProxy, Collector, Sequencer, Gateway)
}
func (c *Config) needsMetalog() bool { return c.hasAny(Batcher, ReadStream, Collector, Sequencer) }
func (c *Config) needsBlobs() bool   { return c.hasAny(Batcher, ReadProxy, Collector) }

// usesMetalog reports whether the process has an engine, or a client of one. A control plane alone finds it through the membership,
// unless it is told where it is; a read proxy alone does without, and learns no zone maps.
func (c *Config) usesMetalog() bool {
	return c.Has(Metalog) || c.needsMetalog() || c.hasAny(ControlPlane, ReadProxy) && c.Metalog != ""
}

// needsData reports whether the process keeps anything in its data folder.
func (c *Config) needsData() bool { return c.needsControl() }

// BlobPath is the folder of a file store.
func (c *Config) BlobPath() string {
	if c.Blobs.Path != "" {
		return c.Blobs.Path
	}
	return filepath.Join(c.Data, "blobs")
}

// flushFloor is the configured one, or what suits the store: requests to S3 cost money, files do not.
func (c *Config) flushFloor() time.Duration {
	switch {
	case c.FlushFloor != nil:
		return c.FlushFloor.Std()
	case c.Blobs.Kind == "s3":
		return 250 * time.Millisecond
	default:
		return 0
	}
}
