package member

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

const (
	askTimeout = 3 * time.Second
	maxAnswer  = 1 << 20
)

// knownMember is a member in what another one answers, see etcd's server/etcdserver/api/etcdhttp/peer.go.
type knownMember struct {
	Name     string   `json:"name"`
	PeerURLs []string `json:"peerURLs"`
	// ClientURLs are there once the member was started. Names are not: members of a new cluster have theirs from the beginning.
	ClientURLs []string `json:"clientURLs"`
}

// refuseForgotten fails with ErrDataLost if this member is about to join with an empty folder and was started before. etcd looks only where
// a cluster begins; with Join it would let the member vote again, in a term in which it may have voted already.
func (c *Config) refuseForgotten() error {
	if has, err := HasData(c.Folder); err != nil || has || !c.Join {
		return err
	}
	own := c.own().URL
	for _, peer := range c.Members {
		if peer.URL == own {
			continue
		}
		for _, m := range c.askMembers(peer.URL) {
			if len(m.ClientURLs) > 0 && slices.Contains(m.PeerURLs, own) {
				return fmt.Errorf("%w: folder %s: %s says that %q was started: remove the member from the cluster and add it again",
					ErrDataLost, c.Folder, peer.URL, m.Name)
			}
		}
	}
	return nil
}

// askMembers asks a member for all of them; none if it does not answer. If nobody answers, etcd does not start.
func (c *Config) askMembers(peerURL string) (members []knownMember) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, peerURL+"/members", nil)
	if err != nil {
		return nil
	}
	via := &http.Transport{DisableKeepAlives: true}
	if c.TLS != nil {
		via.TLSClientConfig = c.TLS.Client.Clone()
	}
	client := http.Client{Transport: via}
	res, err := client.Do(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&members); err != nil {
		return nil
	}
	return members
}
