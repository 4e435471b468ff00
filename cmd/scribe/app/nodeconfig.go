package app

import (
	"cmp"
	"net"
	"slices"

	"scribe/internal/base/config"
)

// EtcdConfig says where an etcd is that people run already, and how to get in.
type EtcdConfig struct {
	// URLs of its members; empty = metadata is in the data folder.
	URLs []string `yaml:"urls" flag:"etcd,serve,detach" help:"URLs of an etcd that keeps the metadata of the roles controlplane and metalog, separated by commas"`
	// CA is the file of the authority that signed its certificates; empty = the machine's authorities.
	CA string `yaml:"ca" flag:"etcd-ca,serve,detach" help:"file with the certificate authority of that etcd (default: those of this machine)"`
	// Cert and Key are the files of a client's certificate.
	Cert string `yaml:"cert" flag:"etcd-cert,serve,detach" help:"file with the certificate for that etcd"`
	Key  string `yaml:"key" flag:"etcd-key,serve,detach" help:"file with the key of --etcd-cert"`
	// User and Password log in. Better given in the environment than in a file.
	User     string `yaml:"user" flag:"etcd-user,serve,detach" help:"user of that etcd"`
	Password string `yaml:"password" flag:"etcd-password,serve,detach" help:"password of --etcd-user; better in the environment, SCRIBE_ETCD_PASSWORD"`
}

// isEmpty reports whether nothing is said but URLs.
func (e *EtcdConfig) isEmpty() bool {
	return e.CA+e.Cert+e.Key+e.User+e.Password == ""
}

// nodes are the nodes of the cell, by name; nil if the process is not a node.
func (c *Config) nodes() []nodePlace {
	if c.Node == "" {
		return nil
	}
	nodes, _ := parseNodes(c.Cluster) // validated
	return nodes
}

// nodePlace returns the process's own place among the nodes.
func (c *Config) nodePlace() nodePlace { return c.findNode(c.Node) }

// findNode returns the node of a name; without an address if there is none.
func (c *Config) findNode(name string) nodePlace {
	for _, p := range c.nodes() {
		if p.name == name {
			return p
		}
	}
	return nodePlace{name: name}
}

// listensElsewhere reports whether a node listens on another port than the one at which others call it. A container's port may be forwarded; by
// mistake it leaves the node, and those that wait for it, without a majority.
func (c *Config) listensElsewhere() bool {
	_, own, err := net.SplitHostPort(c.Listen)
	_, called, cerr := net.SplitHostPort(c.nodePlace().address)
	return err == nil && cerr == nil && own != called
}

// replicates reports whether the process keeps metadata in etcd: in the one that it runs as a node, or in one that others run.
func (c *Config) replicates() bool { return c.Node != "" || len(c.Etcd.URLs) > 0 }

// asNode returns the configuration with what follows from the node's place.
func (c Config) asNode() Config {
	if c.Node == "" {
		return c
	}
	place := c.nodePlace()
	if c.Listen == config.Defaults[Config]().Listen {
		c.Listen = place.address
	}
	c.Advertise = cmp.Or(c.Advertise, place.url(c.servesTLS()))
	c.ID = cmp.Or(c.ID, c.Node)
	return c
}

// checkNodes checks what says that the process is a node, and of which cell.
func (c *Config) checkNodes(v *config.Violations) {
	if !nodeName.MatchString(c.Cell) {
		v.Add("Cell", "invalid value %q: want letters, digits, '.', '_' and '-'", c.Cell)
	}
	c.checkEtcd(v)
	switch {
	case c.Node == "" && len(c.Cluster) == 0:
		switch {
		case !c.Adopt:
		case len(c.Etcd.URLs) == 0:
			v.Add("Adopt", "only nodes and processes with --etcd adopt: want --node and --cluster, or --etcd, as well")
		case !c.Has(ControlPlane) || !c.Has(Metalog):
			v.Add("Adopt", "the metadata of a cell is its categories and its logs: want the roles controlplane and metalog in one process, with the folders control and metalog in --data")
		}
		return
	case c.Node == "":
		v.Add("Node", "missing: want the name of this node, one of --cluster")
		return
	case len(c.Cluster) == 0:
		v.Add("Cluster", "missing: want NAME=HOST:PORT of every node, separated by commas")
		return
	}
	nodes, err := parseNodes(c.Cluster)
	switch {
	case err != nil:
		v.Add("Cluster", "%w", err)
		return
	case !slices.Contains([]int{1, 3, 5}, len(nodes)):
		v.Add("Cluster", "there are %d nodes: want one, three or five. Two stand still when one of them is away, as an even number does with a node fewer", len(nodes))
	case c.nodePlace().address == "":
		v.Add("Node", "invalid value %q: want one of --cluster, %s", c.Node, listNodes(nodes))
	}
	if len(nodes) > 1 && c.Blobs.Kind == "file" && c.Blobs.Path == "" {
		v.Add("Blobs.Path", "missing: want a folder that all nodes share, or --blobs s3")
	}
	if c.TLS.Serves() && (c.TLS.CA == "" || c.TLS.ClientCA == "") {
		v.Add("TLS.ClientCA", "missing: the nodes' etcd is for nodes alone, so that nodes with TLS need tls_ca and tls_client_ca")
	}
	for _, r := range AllRoles {
		if !c.Has(r) {
			v.Add("Node", "a node has every role: the role %s is missing", r)
		}
	}
}

// checkEtcd checks what says where an etcd is that others run.
func (c *Config) checkEtcd(v *config.Violations) {
	if len(c.Etcd.URLs) == 0 {
		if !c.Etcd.isEmpty() {
			v.Add("Etcd.URLs", "missing: what else is said of etcd needs them")
		}
		return
	}
	switch {
	case c.Node != "":
		v.Add("Etcd.URLs", "a node runs its own etcd: want either --node or --etcd")
	case !c.hasAny(ControlPlane, Metalog):
		v.Add("Etcd.URLs", "only the roles controlplane and metalog keep anything there; the others take --control and --metalog")
	}
	for _, u := range c.Etcd.URLs {
		if !isURL(u) {
			v.Add("Etcd.URLs", "invalid value %q: want http://host:port, or https:// with --etcd-ca", u)
		}
	}
	if (c.Etcd.Cert == "") != (c.Etcd.Key == "") {
		v.Add("Etcd.Cert", "a certificate and its key go together: want --etcd-cert and --etcd-key")
	}
	if c.Etcd.User == "" && c.Etcd.Password != "" {
		v.Add("Etcd.User", "missing: there is a password")
	}
}
