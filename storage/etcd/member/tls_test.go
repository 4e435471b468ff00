package member_test

import (
	"strings"
	"testing"
	"time"

	"scribe/internal/testkit/etcdtest"
	"scribe/internal/transport/certificates/certtest"
	"scribe/internal/transport/tlsfiles"
	"scribe/storage/etcd"
	"scribe/storage/etcd/member"
)

// TestTLS: members replicate over TLS, and serve a client that has a member's certificate; a member that joins asks the others over TLS as well.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t, "cell", time.Now())
	folder := t.TempDir()
	configs := make([]member.Config, 3)
	var peers []member.Peer
	var endpoints []string
	files := tlsfiles.Config{CA: ca.File}
	files.Cert, files.Key = ca.Server("n")
	opened, err := tlsfiles.Open(files, tlsfiles.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	reserve := func(name string) (member.Config, member.Peer) {
		cfg, own := etcdtest.Reserve(t, name, folder)
		cfg.ClientURL, own.URL = strings.Replace(cfg.ClientURL, "http:", "https:", 1), strings.Replace(own.URL, "http:", "https:", 1)
		cfg.TLS = &member.TLS{Cert: files.Cert, Key: files.Key, CA: ca.File, Client: opened.ClientConfig()}
		return cfg, own
	}
	for i, name := range []string{"m0", "m1", "m2"} {
		var own member.Peer
		configs[i], own = reserve(name)
		peers, endpoints = append(peers, own), append(endpoints, configs[i].ClientURL)
	}
	members := make([]*member.Member, len(configs))
	for i := range configs {
		configs[i].Members = peers
		if members[i], err = member.Start(configs[i]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { members[i].Close() })
	}
	for _, m := range members {
		<-m.Ready()
	}
	client, err := etcd.Connect(etcd.Config{Endpoints: endpoints, TLS: opened.ClientConfig()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	mustPut(t, client, "a", "1")
	wantValue(t, client, "a", "1")

	// Its folder is empty, and the members, asked over TLS, know that it ran.
	members[2].Close()
	lost, _ := etcdtest.Reserve(t, "lost", t.TempDir())
	again := configs[2]
	again.Folder, again.Join = lost.Folder, true
	if m, err := member.Start(again); err == nil || !strings.Contains(err.Error(), member.ErrDataLost.Error()) {
		t.Errorf("%v, %v: want %v", m, err, member.ErrDataLost)
	}
	mustPut(t, client, "a", "2")
}

// TestTLSConfig: URLs and files go together.
func TestTLSConfig(t *testing.T) {
	cfg, own := etcdtest.Reserve(t, "one", t.TempDir())
	cfg.Members, cfg.TLS = []member.Peer{own}, &member.TLS{}
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "go together") {
		t.Errorf("files for http: %v", err)
	}
	cfg.TLS, cfg.ClientURL = nil, strings.Replace(cfg.ClientURL, "http:", "https:", 1)
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "go together") {
		t.Errorf("https without files: %v", err)
	}
}
