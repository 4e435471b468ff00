package member

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdserver"
)

// ErrDataLost means that the cluster knows this member as one that ran, and that its folder is empty. It has forgotten what it voted for
// and what it stored, so it may not go on under its old number: remove it from the cluster, and add it as a new member.
var ErrDataLost = errors.New("the cluster knows this member, whose data is not there: put it back, or remove the member from the cluster, " +
	"add it again and let it join (scribe node replace)")

// refuseLostData refuses to join as a member that ran before. etcd refuses that for new clusters only; a member that joins takes its old
// number again, and panics when the leader tells it of entries that it had.
func refuseLostData(c Config) error {
	has, err := HasData(c.Folder)
	if err != nil || has || !c.Join {
		return err
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	var others []string
	for _, p := range c.Members {
		if p.Name != c.Name {
			others = append(others, p.URL)
		}
	}
	cluster, err := etcdserver.GetClusterFromRemotePeers(nil, others, transport)
	if err != nil {
		return fmt.Errorf("no member of the cluster to join answers at %s: %w", strings.Join(others, ", "), err)
	}
	// One that was added and never ran has no name yet.
	if cluster.MemberByName(c.Name) != nil {
		return fmt.Errorf("%w; its folder is %s", ErrDataLost, c.Folder)
	}
	return nil
}

// explainStart adds to an error of etcd what to do about it.
func explainStart(c Config, err error) error {
	switch text := err.Error(); {
	case strings.Contains(text, "address already in use"):
		return fmt.Errorf("%w: another process listens on %s or %s", err, c.ClientListen, c.PeerListen)
	case strings.Contains(text, "has already been bootstrapped"):
		return fmt.Errorf("%w: %w; its folder is %s", err, ErrDataLost, c.Folder)
	case strings.Contains(text, "member count is unequal"), strings.Contains(text, "no match found for existing member"):
		return fmt.Errorf("%w: the cluster's members are not those given, %s", err, c.initialCluster())
	}
	return err
}
