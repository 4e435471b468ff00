package app

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	scribev1 "scribe/proto/scribe/v1"
)

// nodePlace is a node and where it is.
type nodePlace struct {
	name string
	// address is where the node listens, host:port.
	address string
}

// Ports of a node's etcd, beside the one that the node listens on.
const (
	etcdClientPort = 1
	etcdPeerPort   = 2
)

// maxPort leaves room for the ports of etcd.
const maxPort = 1<<16 - 1 - etcdPeerPort

// String is the node as --cluster names it.
func (p nodePlace) String() string { return p.name + "=" + p.address }

// url is the node's base URL; all nodes of a cell serve with TLS, or none.
func (p nodePlace) url(secure bool) string { return schemeOf(secure) + p.address }

// etcdClient returns the address at which its etcd serves clients.
func (p nodePlace) etcdClient() string { return shiftPort(p.address, etcdClientPort) }

// etcdPeer returns the address at which its etcd serves the other nodes.
func (p nodePlace) etcdPeer() string { return shiftPort(p.address, etcdPeerPort) }

// message is the node in the protocol.
func (p nodePlace) message() *scribev1.NodeAddress {
	return &scribev1.NodeAddress{Name: p.name, Address: p.address}
}

// shiftPort adds n to the port of an address; an address without a number is returned as it is.
func shiftPort(address string, n int) string {
	host, port, err := net.SplitHostPort(address)
	number, aerr := strconv.Atoi(port)
	if err != nil || aerr != nil {
		return address
	}
	return net.JoinHostPort(host, strconv.Itoa(number+n))
}

var nodeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// parseNode reads NAME=HOST:PORT.
func parseNode(text string) (nodePlace, error) {
	name, address, _ := strings.Cut(strings.TrimSpace(text), "=")
	p := nodePlace{name, address}
	return p, p.validate()
}

func (p nodePlace) validate() error {
	if !nodeName.MatchString(p.name) {
		return fmt.Errorf("invalid node %q: want NAME=HOST:PORT, the name of letters, digits, '.', '_' and '-'", p)
	}
	host, port, err := net.SplitHostPort(p.address)
	if err != nil || host == "" {
		return fmt.Errorf("invalid node %q: want NAME=HOST:PORT, the address at which the others reach it", p)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("invalid node %q: %s is no address at which the others reach it; give that here and %s with --listen", p, host, host)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > maxPort {
		return fmt.Errorf("invalid node %q: want a port from 1 to %d: the next two are etcd's", p, maxPort)
	}
	return nil
}

// parseNodes reads the nodes of a cell, in the order of their names.
func parseNodes(texts []string) ([]nodePlace, error) {
	var errs []error
	nodes := make([]nodePlace, 0, len(texts))
	for _, text := range texts {
		p, err := parseNode(text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i := slices.IndexFunc(nodes, p.collides); i >= 0 {
			errs = append(errs, fmt.Errorf("%s and %s: names must differ, and addresses by more than the two ports of etcd", nodes[i], p))
		}
		nodes = append(nodes, p)
	}
	slices.SortFunc(nodes, compareNodes)
	return nodes, errors.Join(errs...)
}

// NodeHosts returns the names of the nodes in --cluster, in their order, and the hosts at which the others reach them.
func NodeHosts(cluster []string) (names, hosts []string, err error) {
	nodes, err := parseNodes(cluster)
	for _, p := range nodes {
		host, _, _ := net.SplitHostPort(p.address) // validated
		names, hosts = append(names, p.name), append(hosts, host)
	}
	return names, hosts, err
}

// collides reports whether two nodes can't be in one cell.
func (p nodePlace) collides(other nodePlace) bool {
	if p.name == other.name {
		return true
	}
	for i := -etcdPeerPort; i <= etcdPeerPort; i++ {
		if p.address == shiftPort(other.address, i) {
			return true
		}
	}
	return false
}

// compareNodes orders nodes by their names.
func compareNodes(a, b nodePlace) int { return cmp.Compare(a.name, b.name) }

// listNodes writes nodes as --cluster does.
func listNodes(nodes []nodePlace) string {
	texts := make([]string, len(nodes))
	for i, p := range nodes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

// nodeMessages are nodes in the protocol.
func nodeMessages(nodes []nodePlace) []*scribev1.NodeAddress {
	messages := make([]*scribev1.NodeAddress, len(nodes))
	for i, p := range nodes {
		messages[i] = p.message()
	}
	return messages
}

// nodesOf are nodes of the protocol, in the order of their names.
func nodesOf(messages []*scribev1.NodeAddress) []nodePlace {
	nodes := make([]nodePlace, len(messages))
	for i, m := range messages {
		nodes[i] = nodePlace{m.GetName(), m.GetAddress()}
	}
	slices.SortFunc(nodes, compareNodes)
	return nodes
}

// clusterToken tells the etcd of one cell from that of another, which has other nodes. Nodes that begin together with the same list have the same one.
func clusterToken(cell string, nodes []nodePlace) string {
	sum := sha256.Sum256([]byte(cell + " " + listNodes(nodes)))
	return "scribe-" + hex.EncodeToString(sum[:8])
}
