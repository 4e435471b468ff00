package app

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// losing is who may do what, where answers to the first tokens are lost.
type losing struct {
	rpc.AccessService
	left int
}

func (l *losing) IssueToken(ctx context.Context, req *scribev1.IssueTokenRequest) (*scribev1.IssueTokenResponse, error) {
	res, err := l.AccessService.IssueToken(ctx, req)
	if l.left--; err == nil && l.left >= 0 {
		return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "the answer is lost")
	}
	return res, err
}

// TestAdministratorToken: the administrator of a node has a name of its own, and of several attempts to issue its token one token is left, beside those that there were.
func TestAdministratorToken(t *testing.T) {
	a, err := start(t, Direct, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, a)
	if _, err := a.issueAdministrator(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.cfg.Node = "n1"
	a.parts.access = &losing{AccessService: a.parts.access, left: 2}
	text, err := a.issueAdministrator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	res, err := a.parts.access.ListTokens(t.Context(), &scribev1.ListTokensRequest{})
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]int{}
	for _, token := range res.GetTokens() {
		if token.GetRevokedAt() == 0 {
			left[token.GetPrincipal()]++
			if token.GetPrincipal() == "admin-n1" && !strings.Contains(text, token.GetId()) {
				t.Error("the token that is left is another one")
			}
		}
	}
	if len(left) != 2 || left["admin"] != 1 || left["admin-n1"] != 1 {
		t.Errorf("tokens that are left: %v", left)
	}
}

// TestSecureFiles: a process whose authority's key was taken away goes on with its certificate while that is valid, and says so; without either it does not start. The folder of a
// process alone is not a node's: another authority is not to come by accident.
func TestSecureFiles(t *testing.T) {
	c := DefaultConfig()
	c.Data, c.Listen, c.Secure = t.TempDir(), "127.0.0.1:7420", true
	c = c.asSecure()
	now := time.Now()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	if err := c.makeSecure(now, log); err != nil || out.Len() > 0 {
		t.Fatalf("%v, %s", err, &out)
	}
	node := c
	node.Node, node.Cluster = "n1", []string{"n1=10.0.0.1:7420"}
	if err := node.makeSecure(now, log); err == nil || !strings.Contains(err.Error(), "scribe cert nodes --cluster n1=10.0.0.1:7420 --dir") {
		t.Errorf("a node with the key of an authority: %v", err)
	}
	if err := os.Remove(filepath.Join(c.Data, "secure", "ca.key")); err != nil {
		t.Fatal(err)
	}
	if err := node.makeSecure(now, log); err != nil {
		t.Errorf("a node without it: %v", err)
	}
	if err := c.makeSecure(now, log); err != nil || out.Len() > 0 {
		t.Errorf("with a good certificate: %v, %s", err, &out)
	}
	soon := now.Add(certificateLife - time.Hour)
	if err := c.makeSecure(soon, log); err != nil || !strings.Contains(out.String(), "put it back") {
		t.Errorf("with a certificate that ends soon: %v, %s", err, &out)
	}
	if err := c.makeSecure(now.Add(certificateLife+time.Hour), log); err == nil {
		t.Error("with one that has ended")
	}
}

// TestOpenNodes: an open process is told how it could be secure, also a node.
func TestOpenNodes(t *testing.T) {
	for name, node := range map[string]string{"--secure, ": "", "--secure with what scribe cert nodes makes, ": "n1"} {
		c := DefaultConfig()
		c.Listen = "10.0.0.1:7420"
		if c.Node = node; node != "" {
			c.Cluster = []string{"n1=10.0.0.1:7420"}
		}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "Want "+name) {
			t.Errorf("%q: %v", node, err)
		}
	}
}
