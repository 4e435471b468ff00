package member

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/pkg/v3/featuregate"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/features"
	"go.uber.org/zap"

	"scribe/internal/transport/principal"
)

// Config configures a member. Addresses are host:port.
type Config struct {
	// Name of this member, one of Members.
	Name string
	// Folder of its data.
	Folder string
	// ClientListen and PeerListen are where it listens; the hosts are IP addresses or localhost.
	ClientListen, PeerListen string
	// ClientURL is where clients reach it.
	ClientURL string
	// Members are all members, this one included. They matter at the first start only: later starts know them from the folder.
	Members []Peer
	// Join says that the cluster exists already, and that this member was added to it. It matters at the first start only.
	Join bool
	// Token distinguishes clusters: members of another one are refused.
	Token string
	// TLS is what the member serves clients and the other members with, where URLs say https; nil for http.
	TLS *TLS
	// Logger gets etcd's messages, most of them at the level of debugging; nil discards them.
	Logger *slog.Logger
}

// TLS names a member's files. Certificates are read again at each connection, authorities at the start.
type TLS struct {
	// Cert and Key are the member's, towards clients and members, and CA signed the certificates of both.
	Cert, Key, CA string
	// ServerName is the name that certificates of members must have; empty = the host of their URLs.
	ServerName string
	// Client is how this process asks other members.
	Client *tls.Config
}

// info is the same in etcd's terms. Others of the same authority are refused: etcd has no finer rights for them.
func (t *TLS) info() transport.TLSInfo {
	if t == nil {
		return transport.TLSInfo{}
	}
	return transport.TLSInfo{
		CertFile: t.Cert, KeyFile: t.Key, TrustedCAFile: t.CA, ClientCertAuth: true, AllowedHostnames: []string{principal.MemberHost}, ServerName: t.ServerName, MinVersion: tls.VersionTLS13,
	}
}

// Peer is a member as the others see it.
type Peer struct {
	// Name of the member.
	Name string
	// URL is where other members reach it.
	URL string
}

const (
	// quotaBytes is the size of the database at which etcd refuses writes. The metadata logs stop earlier.
	quotaBytes = 8 << 30
	// snapshotEntries is after how many log entries etcd writes a snapshot, and how many it keeps in memory for members that are behind. With the
	// default of 10,000 entries, of 128 KiB each, it would have gigabytes of them.
	snapshotEntries = 500
	// maxTxnOps is more than a transaction of package kv with as many conditions needs.
	maxTxnOps = 512
	// maxRequestBytes is the largest request.
	maxRequestBytes = 2 << 20
	// tickMillis and electionMillis are etcd's heartbeat and election timeout.
	tickMillis     = 100
	electionMillis = 1000
	// checkEvery is how often the members compare all their data. They do not at the start, where each would wait for all others to be there.
	// What was compacted they compare every minute.
	checkEvery = time.Hour
)

// Validate reports every violation.
func (c *Config) Validate() error {
	var errs []error
	if c.Name == "" {
		errs = append(errs, errors.New("no name"))
	}
	if c.Folder == "" {
		errs = append(errs, errors.New("no folder"))
	}
	if !slices.ContainsFunc(c.Members, func(p Peer) bool { return p.Name == c.Name }) {
		errs = append(errs, fmt.Errorf("member %q is not among the members %s", c.Name, c.initialCluster()))
	}
	for _, addr := range []string{c.ClientListen, c.PeerListen} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("invalid address %q: want HOST:PORT", addr))
		}
	}
	for i, p := range c.Members {
		if _, err := parseURL(p.URL); err != nil {
			errs = append(errs, fmt.Errorf("member %q: %w", p.Name, err))
		}
		if slices.ContainsFunc(c.Members[:i], func(o Peer) bool { return o.Name == p.Name || o.URL == p.URL }) {
			errs = append(errs, fmt.Errorf("member %q at %s is given twice", p.Name, p.URL))
		}
	}
	if _, err := parseURL(c.ClientURL); err != nil {
		errs = append(errs, err)
	}
	if secure := strings.HasPrefix(c.ClientURL, "https:"); secure != (c.TLS != nil) {
		errs = append(errs, errors.New("URLs of https and files for TLS go together"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("etcd member: invalid configuration: %w", err)
	}
	return nil
}

// own is this member among Members. c is valid.
func (c *Config) own() Peer {
	return c.Members[slices.IndexFunc(c.Members, func(p Peer) bool { return p.Name == c.Name })]
}

// initialCluster are the members in etcd's notation.
func (c *Config) initialCluster() string {
	members := make([]string, len(c.Members))
	for i, p := range c.Members {
		members[i] = p.Name + "=" + p.URL
	}
	return strings.Join(members, ",")
}

func parseURL(text string) (url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Port() == "" {
		return url.URL{}, fmt.Errorf("invalid URL %q: want http://HOST:PORT", text)
	}
	return *u, nil
}

// embedded is the configuration in etcd's terms. c is valid.
func (c *Config) embedded(logger *zap.Logger) (*embed.Config, error) {
	e := embed.NewConfig()
	e.Name, e.Dir = c.Name, c.Folder
	peer, _ := parseURL(c.own().URL)
	client, _ := parseURL(c.ClientURL)
	e.ListenPeerUrls = []url.URL{{Scheme: peer.Scheme, Host: c.PeerListen}}
	e.ListenClientUrls = []url.URL{{Scheme: client.Scheme, Host: c.ClientListen}}
	e.AdvertisePeerUrls, e.AdvertiseClientUrls = []url.URL{peer}, []url.URL{client}
	e.InitialCluster, e.InitialClusterToken = c.initialCluster(), c.Token
	e.ClusterState = embed.ClusterStateFlagNew
	if c.Join {
		e.ClusterState = embed.ClusterStateFlagExisting
	}
	e.SnapshotCount, e.SnapshotCatchUpEntries = snapshotEntries, snapshotEntries
	e.QuotaBackendBytes, e.MaxRequestBytes, e.MaxTxnOps = quotaBytes, maxRequestBytes, maxTxnOps
	e.TickMs, e.ElectionMs = tickMillis, electionMillis
	e.EnableGRPCGateway, e.StrictReconfigCheck, e.PreVote = false, true, true
	e.CorruptCheckTime = checkEvery
	if gate, ok := e.ServerFeatureGate.(featuregate.MutableFeatureGate); ok {
		if err := gate.SetFromMap(map[string]bool{string(features.CompactHashCheck): true}); err != nil {
			return nil, err
		}
	}
	e.ClientTLSInfo, e.PeerTLSInfo = c.TLS.info(), c.TLS.info()
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger)
	return e, nil
}
