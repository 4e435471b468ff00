package app

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"scribe/batcher"
	"scribe/internal/base/config"
	"scribe/internal/base/units"
	"scribe/internal/cell/oidc"
	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/tlsfiles"
	"scribe/readproxy"
	"scribe/readproxy/memcached"
	"scribe/readstream"
	"scribe/retention"
	"scribe/scribed"
	"scribe/scribed/deadletter"
	"scribe/scribed/spool"
	"scribe/sequencer"
	"scribe/sqlserver"
	"scribe/storage/blob/s3"
	"scribe/storage/metalog"
	"scribe/writeproxy"
)

// Config is what one process runs. It is read from YAML; flags and environment variables are laid over it by cmd/scribe. The settings of
// roles are theirs.
type Config struct {
	// Roles of the process.
	Roles RoleList `yaml:"roles" flag:"roles,serve" help:"roles of this process, separated by commas, or all"`
	// Data is the folder of everything that the process keeps: categories, logs, blobs on files, copies of metadata.
	Data string `yaml:"data" default:"./scribe-data" required:"a folder" flag:"data,up,serve,blobs" help:"folder of all data of the process"`
	// Listen is the TCP address that everything is served on, host:port; port 0 takes a free one.
	Listen string `yaml:"listen" default:"127.0.0.1:7420" flag:"listen,up,serve,agent" help:"address to serve on, host:port; port 0 takes a free one"`
	// Socket is the path of a Unix socket to serve on as well; empty = none.
	Socket string `yaml:"socket" flag:"socket,agent" help:"path of a Unix socket to serve on in addition"`
	// TLS names the files with which the process serves, and proves who it is.
	TLS tlsfiles.Config `yaml:",inline" check:"off"`
	// Secure has the process make an authority, its certificate and an administrator's token in its data folder, and let in only who may.
	Secure bool `yaml:"secure" flag:"secure,up" help:"TLS, authentication and default deny: makes certificates (of a node: takes those of scribe cert nodes) and an administrator's token, and writes what to export to DATA/secure/admin.env"`
	// OIDC says which tokens of an issuer prove who calls, beside those of the cell and certificates.
	OIDC oidc.Config `yaml:"oidc"`
	// Audit keeps a trail of who did what, where callers must prove who they are.
	Audit bool `yaml:"audit" default:"true" flag:"audit,up,serve" help:"keep the category _audit of who changed what and what was denied, with --tls-client-ca or --secure"`
	// AuditDataAccess is how often the trail says who wrote, read, queried and used groups of which category; 0 = never.
	AuditDataAccess time.Duration `yaml:"audit_data_access" default:"0s" min:"1s" max:"24h" zero:"off" flag:"audit-data-access,up,serve" help:"how often _audit also gets who wrote, read, queried and used groups of which category, such as 10m: one entry for each of them, with the number of calls (default: never)"`
	// Insecure has the process serve other hosts although callers need not prove who they are.
	Insecure bool `yaml:"insecure" flag:"insecure,up,serve,agent" help:"serve other hosts without authentication: everybody who reaches the address may read, write and delete everything"`
	// PlainListen serves without TLS although there is a certificate: an agent's is for the cell, and its own clients are on the same host.
	PlainListen bool `yaml:"plain_listen" flag:"plain-listen,agent" help:"serve --listen without TLS although there is a certificate: it must be a loopback address"`
	// Advertise is the base URL under which other processes reach this one; empty = http:// or https:// and the listening address.
	Advertise string `yaml:"advertise" flag:"advertise" help:"base URL under which others reach this process (default: http://, or https:// with --tls-cert, and the listening address)"`
	// ID names the process in the membership; empty = the host's name and a random part, kept in the data folder.
	ID string `yaml:"id" flag:"id,up,serve,agent" help:"name in the membership (default: host name and a random part, kept in the data folder)"`
	// Control is the control plane's base URL, or several, separated by commas; for processes without that role.
	Control string `yaml:"control" flag:"control,serve" help:"base URL of the control plane, if another process runs it; several, separated by commas, if several do"`
	// Metalog is the base URL of the process that serves the metadata logs, or those of all its replicas, separated by commas; for batchers, read streams, retention and sequencers in processes
	// without that role. A control plane that does without takes the one that is a member of the cell.
	Metalog string `yaml:"metalog" flag:"metalog,serve" help:"base URL of the process that serves the metadata logs, if it is another one; those of all replicas, separated by commas"`
	// Node is the name of the process among the nodes of its cell, which replicate the metadata; empty = it is none.
	Node string `yaml:"node" flag:"node,up" help:"name of this node, one of --cluster: the cell's metadata is replicated over its nodes"`
	// Cluster are all nodes of the cell as NAME=HOST:PORT. Etcd has the two ports that follow each.
	Cluster []string `yaml:"cluster" flag:"cluster,up" help:"all nodes of the cell, one, three or five: NAME=HOST:PORT,...; the two ports after each are etcd's"`
	// Adopt makes what the data folder has, of a cell of one process, that of the nodes, or of the cell in etcd.
	Adopt bool `yaml:"adopt" flag:"adopt,up,serve" help:"make the metadata in --data, of a cell of one process, that of the new cell of nodes, or in --etcd; at one process only"`
	// Cell names the cell in etcd, where several may be.
	Cell string `yaml:"cell" default:"scribe" flag:"cell,up,serve" help:"name of the cell, the prefix of its keys in etcd"`
	// SnapshotEvery is how often the replica that leads makes a snapshot of replicated metadata, where there is something new. New and damaged replicas begin with it, and the
	// journal in etcd is trimmed up to it.
	SnapshotEvery time.Duration `yaml:"snapshot_every" default:"15m" min:"1s" max:"24h" flag:"snapshot-every,up,serve" help:"how often a snapshot of replicated metadata is made, if there is anything new"`
	// Etcd is an etcd that others run, for the roles controlplane and metalog.
	Etcd EtcdConfig `yaml:"etcd" check:"off"`
	// Upstream is where scribed forwards to: the base URL of a write proxy, or of any process of the cell, or several, separated by commas;
	// empty with a writeproxy in the same process.
	Upstream string `yaml:"upstream" flag:"upstream,serve,agent" help:"address of the cell that scribed forwards to, if this process has no writeproxy; or several, separated by commas"`
	// Inputs are the agent's sources beside the producer library.
	Inputs InputsConfig `yaml:"inputs" check:"off"`
	// Blobs is where payloads are kept.
	Blobs BlobConfig `yaml:"blobs" check:"off"`
	// Backup says where backups of the metadata are kept, and how often one is made.
	Backup BackupConfig `yaml:"backup"`
	// Region is the name of the region of this cell, in pointers to what it stores; the same in all its processes. Empty where there is
	// one region.
	Region string `yaml:"region" flag:"region" help:"name of this cell's region, the same in all its processes; only where there are several"`
	// Regions are others, whose payloads a read proxy serves here.
	Regions RegionList `yaml:"regions" check:"off" flag:"regions" help:"other regions whose payloads this process serves, through their read proxies: NAME=URL,..."`
	// FlushFloor is the batcher's; nil = 0 on files and 80 ms on S3, where requests cost money.
	FlushFloor *time.Duration `yaml:"flush_floor" flag:"flush-floor,up,serve,far" help:"least time between two small flushes of a batcher (default: 0s on files, 80ms on S3)"`
	// MetadataCache is what the metadata engine caches, in bytes.
	MetadataCache int64 `yaml:"limits.metadata_cache" default:"64MiB" min:"8MiB" flag:"metadata-cache" help:"cache size of the metadata engine"`
	// Connections are those that the process holds at once from all TCP addresses; a quarter of its file descriptors stays for files in any case.
	Connections int `yaml:"limits.connections" default:"20000" min:"16" flag:"connections,up,serve,agent" help:"how many TCP connections the process holds at once, at most three quarters of its file descriptors"`
	// AddressConnections are those from one address, or IPv6 network of 64 bits.
	AddressConnections int `yaml:"limits.address_connections" default:"5000" min:"16" flag:"address-connections,up,serve,agent" help:"how many of them may come from one address, or IPv6 network of 64 bits"`
	// CallerRequests are the requests in service at once, streams among them, for one caller, where callers must prove who they are.
	CallerRequests int `yaml:"limits.caller_requests" default:"20000" min:"16" flag:"caller-requests,up,serve,agent" help:"how many requests and streams one caller may have in service at once, with --tls-client-ca or --secure"`
	// ShutdownTimeout is how long SIGTERM waits for what was accepted to become durable.
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" default:"30s" min:">0" flag:"shutdown-timeout,up,serve,agent" help:"how long SIGTERM waits for accepted messages to become durable"`
	// LeaseTTL is how long the process stays a member of the cell without a heartbeat.
	LeaseTTL time.Duration `yaml:"lease_ttl" default:"10s" min:"100ms" max:"5m" flag:"lease-ttl" help:"how long the process stays a member without a heartbeat"`
	// Log says what is written to standard error.
	Log LogConfig `yaml:"log"`
	// Pprof serves profiles under /debug/pprof/.
	Pprof bool `yaml:"pprof" flag:"pprof,up,serve,agent" help:"serve profiles under /debug/pprof/"`
	// Console serves the web console at / and under /console/.
	Console bool `yaml:"console" default:"true" flag:"console,up,serve,agent" help:"serve the web console at /; --console=false for none"`
	// Flight is a TCP address of Arrow Flight SQL alone, host:port; empty = none. The process's own address has it as well, as it has queries over HTTP.
	Flight string `yaml:"sqlserver.flight" flag:"flight" help:"address to serve Arrow Flight SQL on, host:port, beside --listen, where it is as queries over HTTP are (default: none)"`

	Scribed    scribed.Config    `check:"off"`
	WriteProxy writeproxy.Config `check:"off"`
	Batcher    batcher.Config    `check:"off"`
	ReadStream readstream.Config `yaml:"streams" check:"off"`
	ReadProxy  readproxy.Config  `yaml:"read_proxy" check:"off"`
	Retention  retention.Config  `yaml:"retention" check:"off"`
	SQLServer  sqlserver.Config  `yaml:"sqlserver" check:"off"`
	Sequencer  sequencer.Config  `yaml:"sequencer" check:"off"`
}

// BlobConfig says where payloads are kept.
type BlobConfig struct {
	Kind string `yaml:"kind" default:"file" oneof:"file s3" flag:"blobs,up,serve,blobs" help:"where payloads are kept: file or s3"`
	// Path is the folder of a file store; empty = blobs in the data folder.
	Path string `yaml:"path" flag:"blob-path,up,serve,blobs" help:"folder of a file store (default: blobs in the data folder)"`
	// S3 is the store of kind s3.
	S3 S3Config `yaml:"s3"`
	// KeyFile has the keys that wrap those of encrypted categories (docs/format/encryption.md), and those of an agent's disk buffer (docs/format/spool.md); empty =
	// encrypted categories can't be written or read, and a disk buffer is not encrypted.
	KeyFile string `yaml:"key_file" flag:"encryption-key-file,up,serve,agent,blobs" help:"file with the keys that wrap those of encrypted categories, the same at all batchers and read proxies, and of an agent's disk buffer, its own; scribe key new makes one"`
}

// S3Config names a bucket of an S3-compatible store.
type S3Config struct {
	// Endpoint is a URL, http://host:port or https://host.
	Endpoint string `yaml:"endpoint" flag:"s3-endpoint,up,serve,blobs,far" help:"URL of the S3 store"`
	// Bucket exists already, or is created at the start with CreateBucket.
	Bucket       string `yaml:"bucket" flag:"s3-bucket,up,serve,blobs,far" help:"bucket"`
	CreateBucket bool   `yaml:"create_bucket" flag:"s3-create-bucket,up,serve,blobs,far" help:"create the bucket when it does not exist"`
	// Prefix stands before every key.
	Prefix string `yaml:"prefix" flag:"s3-prefix,up,serve,blobs,far" help:"prefix of every key"`
	// Region is the bucket's; empty lets the server say.
	Region string `yaml:"region" flag:"s3-region,up,serve,blobs,far" help:"region of the bucket"`
	// Encryption and KMSKey say with which keys the store encrypts what is put.
	Encryption string `yaml:"encryption" flag:"s3-encryption,up,serve,blobs,far" help:"with which keys the store encrypts what is put: s3 (its own) or kms (default: what the bucket says)"`
	KMSKey     string `yaml:"kms_key" flag:"s3-kms-key,up,serve,blobs,far" help:"name of the key of --s3-encryption kms (default: the store's for it)"`
	// AccessKey and SecretKey sign requests. Better given in the environment than in a file.
	AccessKey string `yaml:"access_key" flag:"s3-access-key,up,serve,blobs,far" help:"access key; better in the environment, SCRIBE_S3_ACCESS_KEY"`
	SecretKey string `yaml:"secret_key" flag:"s3-secret-key,up,serve,blobs,far" help:"secret key; better in the environment, SCRIBE_S3_SECRET_KEY"`
	// IAM signs requests with the credentials that the platform gives to the process, in place of keys. They are fetched anew before they expire.
	IAM bool `yaml:"iam" flag:"s3-iam,up,serve,blobs,far" help:"instead of keys use the credentials that the platform gives: those of the pod's service account (IRSA, EKS Pod Identity), the ECS task or the EC2 instance"`
}

// LogConfig says what is logged.
type LogConfig struct {
	Level  string `yaml:"level" default:"info" oneof:"debug info warn error" flag:"log-level,up,serve,agent" help:"debug, info, warn or error"`
	Format string `yaml:"format" default:"text" oneof:"text json" flag:"log-format,up,serve,agent" help:"text or json"`
}

// DefaultConfig is that of `scribe up`: every role on files, creating categories on first use.
func DefaultConfig() Config {
	c := config.Defaults[Config]()
	c.Roles = slices.Clone(AllRoles)
	c.WriteProxy.AutoCreate = true
	c.Scribed.MemoryBytes = c.WriteProxy.MemoryBytes // one setting
	c.Scribed.ReportLosses = reportLosses
	c.Scribed.Spool, c.Scribed.DeadLetter = new(spool.DefaultConfig()), new(deadletter.DefaultConfig())
	c.ReadProxy.Memcached = new(config.Defaults[memcached.Config]())
	return c
}

// Renamed are sections of the configuration and roles by what they were called.
var Renamed = map[string]string{"collector": "retention", "gateway": "sqlserver"}

// Load lays the YAML of a file over c. Fields that it does not know are errors.
func (c *Config) Load(path string) error { return config.Load(path, c, Renamed) }

// Validate reports every violation.
func (c *Config) Validate() error {
	v := config.Check("scribe", c, nil)
	if len(c.Roles) == 0 {
		v.Add("Roles", "missing: want some of %s, or all", roleList())
	}
	for _, r := range c.Roles {
		if err := checkRole(r); err != nil {
			v.Add("Roles", "%w", err)
		}
	}
	if !isAddress(c.Listen) {
		v.Add("Listen", "invalid value %q: want host:port", c.Listen)
	}
	c.checkURLs(v)
	c.checkTLS(v)
	c.checkSecure(v)
	c.checkAudit(v)
	c.checkOpen(v)
	c.checkNodes(v)
	if c.needsBlobs() {
		v.Join("Blobs", c.Blobs.Validate())
	}
	if c.Has(Scribed) {
		c.checkInputs(v)
	}
	if err := pointer.ValidateRegion(c.Region); err != nil {
		v.Add("Region", "%w", err)
	}
	c.checkMemory(v)
	c.checkFlight(v)
	c.checkBackup(v)
	sized := *c
	sized.Region = ""
	for _, n := range []*int64{&sized.Scribed.MemoryBytes, &sized.WriteProxy.MemoryBytes, &sized.Batcher.MemoryBytes} {
		*n = max(*n, minMemory) // what follows from it is not wrong as well
	}
	for field, role := range sized.roleConfigs() {
		if c.Has(role.role) {
			v.Join(field, role.config.Validate())
		}
	}
	if c.Has(ReadProxy) {
		for i := range c.Regions {
			c.checkRegion(v, i)
		}
	}
	return c.nameViolations(v.Err())
}

func (c *Config) checkURLs(v *config.Violations) {
	for _, u := range []struct {
		field, url, why string
		needed          bool
	}{
		{"Control", c.Control, "the process has no controlplane role", c.needsControl() && !c.Has(ControlPlane)},
		{"Metalog", c.Metalog, "the process has no metalog role", c.needsMetalog() && !c.Has(Metalog)},
		{"Upstream", c.Upstream, "scribed needs somewhere to forward to", c.Has(Scribed) && !c.Has(WriteProxy)},
	} {
		if u.url == "" && u.needed {
			v.Add(u.field, "missing: %s", u.why)
		}
		if err := checkURLList(u.url); err != nil {
			v.Add(u.field, "%w", err)
		}
	}
	if c.Advertise != "" && !isURL(c.Advertise) {
		v.Add("Advertise", "invalid value %q: want http://host:port", c.Advertise)
	}
}

// checkFlight checks the address of Flight SQL, which the role knows nothing of.
func (c *Config) checkFlight(v *config.Violations) {
	switch {
	case c.Flight == "":
	case !c.Has(SQLServer):
		v.Add("Flight", "the process has no sqlserver role")
	case !isAddress(c.Flight):
		v.Add("Flight", "invalid value %q: want host:port", c.Flight)
	}
}

// checkMemory: a process needs more than its roles ask for, and says so whatever roles it has.
func (c *Config) checkMemory(v *config.Violations) {
	for field, n := range map[string]int64{
		"WriteProxy.MemoryBytes": c.WriteProxy.MemoryBytes, "Batcher.MemoryBytes": c.Batcher.MemoryBytes, "ReadProxy.CacheBytes": c.ReadProxy.CacheBytes,
	} {
		if n < minMemory {
			v.Add(field, "invalid value %v: want at least %v", units.Bytes(n), units.Bytes(minMemory))
		}
	}
}

// minMemory is the least that a role can work with: one frame of the largest size on its way in and out.
const minMemory = 8 << 20

// roleConfig is what a role is made with.
type roleConfig struct {
	role   Role
	config interface{ Validate() error }
}

// roleConfigs are what the roles are made with, if the process has them, by their fields of c.
func (c *Config) roleConfigs() map[string]roleConfig {
	agent, batch, streams, reads, retain := c.scribedConfig(), c.batcherConfig(), c.readStreamConfig(), c.readProxyConfig(), c.retentionConfig()
	return map[string]roleConfig{
		"Scribed": {Scribed, &agent}, "WriteProxy": {WriteProxy, &c.WriteProxy}, "Batcher": {Batcher, &batch}, "ReadStream": {ReadStream, &streams},
		"ReadProxy": {ReadProxy, &reads}, "Retention": {Retention, &retain}, "SQLServer": {SQLServer, &c.SQLServer}, "Sequencer": {Sequencer, &c.Sequencer},
	}
}

// nameViolations says what is wrong under the names that users know: those of YAML, and the flags. Several roles may use one setting: its
// first violation, that of the process, asks for most.
func (c *Config) nameViolations(err error) error {
	names := map[string]string{}
	flags := map[string]string{}
	for s := range config.Settings(c) {
		if s.Name == "" {
			continue
		}
		names[s.Field] = s.Name
		if flag := s.FlagName(); flag != "" && !strings.Contains(s.Name, "[") {
			flags[s.Name] = " (--" + flag + ")"
		}
	}
	fields := map[string]string{} // by name
	var texts []error
	for _, err := range config.Errors(err) {
		violation, ok := errors.AsType[config.Violation](err)
		if !ok {
			texts = append(texts, err)
			continue
		}
		name := nameOf(names, violation.Field)
		if field, ok := fields[name]; ok && field != violation.Field {
			continue
		}
		fields[name] = violation.Field
		texts = append(texts, fmt.Errorf("%s%s: %s", name, flags[name], violation.Text))
	}
	slices.SortFunc(texts, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(texts...)
}

// nameOf is the name of a field. Places in lists are named like their list.
func nameOf(names map[string]string, field string) string {
	if name, ok := names[field]; ok {
		return name
	}
	if i := strings.LastIndexByte(field, '['); i >= 0 && names[field[:i]] != "" {
		return names[field[:i]] + field[i:]
	}
	return field
}

// MemoryLimit is how much memory the garbage collector should let the process have, in bytes: twice what its roles may hold, since
// they hold requests both as they arrive and as they leave, and what a process takes that holds nothing. It keeps garbage from adding
// to that.
func (c *Config) MemoryLimit() int64 {
	const idle = 64 << 20
	// How many queries are taken to hold all that they may at the same time. If more do, garbage is collected more often.
	const fullQueries = 2
	sum := int64(0)
	for role, n := range map[Role]int64{
		Scribed: c.Scribed.MemoryBytes, WriteProxy: c.WriteProxy.MemoryBytes, Batcher: c.Batcher.MemoryBytes + c.Batcher.PushBytes,
		ReadProxy: c.ReadProxy.CacheBytes + c.ReadProxy.FetchBytes, Metalog: c.MetadataCache,
		ReadStream: int64(c.ReadStream.TotalBytes), SQLServer: fullQueries * c.SQLServer.QueryMemory,
	} {
		if c.Has(role) {
			sum += n
		}
	}
	return idle + 2*sum
}

// ValidateBlobs reports every violation in what says where payloads are kept.
func (c *Config) ValidateBlobs() error {
	var v config.Violations
	v.Join("Blobs", c.Blobs.Validate())
	return c.nameViolations(v.Err())
}

// Validate reports every violation.
func (b *BlobConfig) Validate() error {
	v := config.Check("blobs", b, nil)
	if b.Kind != "s3" {
		return v.Err()
	}
	if !isURL(b.S3.Endpoint) {
		v.Add("S3.Endpoint", "invalid value %q: want http://host:port", b.S3.Endpoint)
	}
	if b.S3.Bucket == "" {
		v.Add("S3.Bucket", "missing: want the name of a bucket")
	}
	switch e := s3.Encryption(b.S3.Encryption); {
	case e != "" && e != s3.EncryptS3 && e != s3.EncryptKMS:
		v.Add("S3.Encryption", "invalid value %q: want %s or %s", e, s3.EncryptS3, s3.EncryptKMS)
	case b.S3.KMSKey != "" && e != s3.EncryptKMS:
		v.Add("S3.KMSKey", "invalid value %q: only --s3-encryption %s has a key", b.S3.KMSKey, s3.EncryptKMS)
	}
	for field, key := range map[string]string{"S3.AccessKey": b.S3.AccessKey, "S3.SecretKey": b.S3.SecretKey} {
		switch {
		case key == "" && !b.S3.IAM:
			v.Add(field, "missing: SCRIBE_S3_ACCESS_KEY and SCRIBE_S3_SECRET_KEY in the environment keep keys out of files; --s3-iam uses credentials of the platform")
		case key != "" && b.S3.IAM:
			v.Add(field, "there are a key and --s3-iam: want either keys or the credentials of the platform")
		}
	}
	return v.Err()
}

// Has reports whether the process has a role.
func (c *Config) Has(r Role) bool { return slices.Contains(c.Roles, r) }

func (c *Config) hasAny(roles ...Role) bool { return slices.ContainsFunc(roles, c.Has) }

// needsControl: every process is a member of its cell; but an agent, whose upstream answers for it.
func (c *Config) needsControl() bool { return c.needsCategories() || c.hasAny(ControlPlane, Metalog) }

func (c *Config) needsCategories() bool {
	return c.hasAny(Batcher, WriteProxy, ReadStream, ReadProxy, Retention, Sequencer, SQLServer)
}
func (c *Config) needsMetalog() bool { return c.hasAny(Batcher, ReadStream, Retention, Sequencer) }

// needsBlobs: replicas of the metadata logs keep their snapshots beside the payloads.
func (c *Config) needsBlobs() bool {
	return c.hasAny(Batcher, ReadProxy, Retention) || c.Has(Metalog) && c.replicates()
}

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

// batcherConfig is what the role is made with.
func (c *Config) batcherConfig() batcher.Config {
	b := c.Batcher
	b.Region = c.Region
	switch {
	case c.FlushFloor != nil:
		b.FlushFloor = *c.FlushFloor
	case c.Blobs.Kind == "s3":
		b.FlushFloor = 80 * time.Millisecond
	}
	return b
}

// readStreamConfig is what the role is made with.
func (c *Config) readStreamConfig() readstream.Config {
	s := c.ReadStream
	s.StreamBytes = min(s.StreamBytes, max(s.TotalBytes, metalog.MaxRecord))
	return s
}

// readProxyConfig is what the role is made with.
func (c *Config) readProxyConfig() readproxy.Config {
	p := c.ReadProxy
	p.Region = c.Region
	if len(p.Memcached.Servers) == 0 { // then nothing is said about it
		d := config.Defaults[readproxy.Config]()
		p.Memcached, p.SharedAge, p.FillBytes = nil, d.SharedAge, d.FillBytes
	}
	return p
}

// retentionConfig is what the role is made with. A step is a small part of the grace, so that what waits for it does not wait for much longer.
func (c *Config) retentionConfig() retention.Config {
	r := c.Retention
	r.BoundaryStep = min(max(r.Grace/12, time.Second), r.BoundaryStep)
	return r
}

// checkURLList reports what is wrong with the base URLs of a cell, separated by commas. None are in order.
func checkURLList(text string) error {
	if text == "" {
		return nil
	}
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry != "" && !isURL(entry) {
			return fmt.Errorf("invalid value %q: want http://host:port", entry)
		}
	}
	_, err := rpc.ParseAddresses(text)
	return err
}

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// isAddress reports whether s is host:port.
func isAddress(s string) bool {
	_, port, err := net.SplitHostPort(s)
	return err == nil && port != ""
}
