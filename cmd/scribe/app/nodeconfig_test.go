package app

import (
	"slices"
	"strings"
	"testing"
)

// nodeConfig is the configuration of n1 of three nodes.
func nodeConfig() Config {
	c := DefaultConfig()
	c.Node, c.Cluster, c.Blobs.Path = "n1", []string{"n3=c:7420", "n1=a:7420", "n2=b:7420"}, "shared"
	c.Insecure = true
	return c
}

// TestNodeConfig: what follows from a node's place, where nothing else is said.
func TestNodeConfig(t *testing.T) {
	c := nodeConfig()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if got := listNodes(c.nodes()); got != "n1=a:7420,n2=b:7420,n3=c:7420" {
		t.Errorf("the nodes are %s", got)
	}
	n := c.asNode()
	if n.Listen != "a:7420" || n.Advertise != "http://a:7420" || n.ID != "n1" {
		t.Errorf("listens on %s, is reached at %s, and named %s", n.Listen, n.Advertise, n.ID)
	}
	c.Listen, c.Advertise, c.ID = "0.0.0.0:7420", "http://outside:80", "x"
	if n := c.asNode(); n.Listen != c.Listen || n.Advertise != c.Advertise || n.ID != c.ID {
		t.Errorf("listens on %s, is reached at %s, and named %s: want what was given", n.Listen, n.Advertise, n.ID)
	}
	if c.listensElsewhere() {
		t.Errorf("%s is the port of %s", c.Listen, c.nodePlace())
	}
	if c.Listen = "0.0.0.0:7520"; !c.listensElsewhere() {
		t.Errorf("%s is not the port of %s", c.Listen, c.nodePlace())
	}
	if p := c.nodePlace(); p.etcdClient() != "a:7421" || p.etcdPeer() != "a:7422" {
		t.Errorf("etcd is at %s and %s", p.etcdClient(), p.etcdPeer())
	}
	if alone := DefaultConfig(); alone.asNode().Listen != alone.Listen || alone.replicates() || alone.nodes() != nil {
		t.Error("a process that is no node has become one")
	}
}

// TestNodeViolations: each mistake in what says that a process is a node has a text that helps.
func TestNodeViolations(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"an even number", func(c *Config) { c.Cluster = c.Cluster[:2] }, "cluster (--cluster): there are 2 nodes: want one, three or five"},
		{"an unknown name", func(c *Config) { c.Node = "n9" }, `node (--node): invalid value "n9": want one of --cluster`},
		{"no name", func(c *Config) { c.Node = "" }, "node (--node): missing"},
		{"no list", func(c *Config) { c.Cluster = nil }, "cluster (--cluster): missing"},
		{"no port", func(c *Config) { c.Cluster[0] = "n3=c" }, `invalid node "n3=c": want NAME=HOST:PORT`},
		{"no room for etcd", func(c *Config) { c.Cluster[0] = "n3=c:65534" }, "want a port from 1 to 65533"},
		{"every interface", func(c *Config) { c.Cluster[0] = "n3=0.0.0.0:7420" }, "give that here and 0.0.0.0 with --listen"},
		{"open to everybody", func(c *Config) { c.Insecure = false }, "listen (--listen): a:7420 is reached from other hosts, and nothing proves who calls"},
		{"a name twice", func(c *Config) { c.Cluster[0] = "n1=c:7420" }, "names must differ"},
		{"ports of etcd", func(c *Config) { c.Cluster[0] = "n3=a:7422" }, "by more than the two ports of etcd"},
		{"blobs of each its own", func(c *Config) { c.Blobs.Path = "" }, "blobs.path (--blob-path): missing: want a folder that all nodes share"},
		{"a part of the roles", func(c *Config) { c.Roles = c.Roles[1:] }, "a node has every role: the role controlplane is missing"},
		{"another etcd", func(c *Config) { c.Etcd.URLs = []string{"http://e:2379"} }, "etcd.urls (--etcd): a node runs its own etcd"},
		{"nobody to adopt", func(c *Config) { c.Node, c.Cluster, c.Adopt = "", nil, true }, "adopt (--adopt): only nodes and processes with --etcd adopt"},
		{"half a cell to adopt", func(c *Config) {
			c.Node, c.Cluster, c.Roles, c.Control, c.Adopt = "", nil, RoleList{Metalog}, "http://a:1", true
			c.Etcd.URLs = []string{"http://e:2379"}
		}, "adopt (--adopt): the metadata of a cell is its categories and its logs: want the roles controlplane and metalog"},
		{"a name of a cell", func(c *Config) { c.Cell = "a/b" }, `cell (--cell): invalid value "a/b"`},
		{"etcd for other roles", func(c *Config) {
			c.Node, c.Cluster, c.Roles, c.Control, c.Metalog = "", nil, RoleList{Batcher}, "http://a:1", "http://a:1"
			c.Etcd.URLs = []string{"http://e:2379"}
		}, "etcd.urls (--etcd): only the roles controlplane and metalog"},
		{"a key without a certificate", func(c *Config) {
			c.Node, c.Cluster = "", nil
			c.Etcd = EtcdConfig{URLs: []string{"https://e:2379"}, Key: "k"}
		}, "etcd.cert (--etcd-cert): a certificate and its key go together"},
		{"a password of nobody", func(c *Config) {
			c.Node, c.Cluster = "", nil
			c.Etcd = EtcdConfig{URLs: []string{"https://e:2379"}, Password: "k"}
		}, "etcd.user (--etcd-user): missing"},
		{"no etcd", func(c *Config) {
			c.Node, c.Cluster = "", nil
			c.Etcd = EtcdConfig{User: "u"}
		}, "etcd.urls (--etcd): missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := nodeConfig()
			test.change(&c)
			err := c.Validate()
			if err == nil || !slices.ContainsFunc(strings.Split(err.Error(), "\n"), func(line string) bool { return strings.Contains(line, test.want) }) {
				t.Errorf("%v: want %q", err, test.want)
			}
		})
	}
}
