package test

import (
	"crypto/rand"
	"encoding/base64"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/program"
)

// TestHerd: a thousand clients of three read proxies ask for the same payload at the same time. Its blob's home reads it from the store
// once, and everybody gets it, those that are told to come back, too.
func TestHerd(t *testing.T) {
	program.OneProcess(t, "it counts what each read proxy does")
	data := t.TempDir()
	up := serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
	// Clients are given this process, which has no read proxy: they find all of them in the membership.
	door := serve(t, nil, "serve", "--roles", "writeproxy", "--control", up.URL, "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	proxies := []*program.Process{up}
	for range 2 {
		proxies = append(proxies, serve(t, nil, "serve", "--roles", "readproxy", "--control", up.URL, "--blob-path", filepath.Join(data, "blobs"),
			"--data", t.TempDir(), "--listen", "127.0.0.1:0"))
	}
	tr := rpc.NewTransport(nil)
	defer tr.Close()
	// Whoever knows another membership takes another one for the home.
	eventually(t, waitLimit, "the door knows every read proxy", func() bool {
		st, err := rpc.NewControlClient(tr, door.URL).GetStatus(t.Context(), &scribev1.GetStatusRequest{})
		known := 0
		for _, m := range st.GetMembers() {
			if slices.Contains(m.GetRoles(), scribev1.Role_ROLE_READPROXY) {
				known++
			}
		}
		return err == nil && known == len(proxies)
	})
	noise := make([]byte, 100_000)
	_, _ = rand.Read(noise)
	want := append(base64.StdEncoding.AppendEncode(nil, noise), '\n')
	produce(t, &cell{write: up.URL}, "hot", want)
	pointer := pointersOf(t, tr, "hot", up.URL, "")[0]
	req := &scribev1.FetchRequest{Pointers: [][]byte{pointer}, Category: "hot"}
	var herd sync.WaitGroup
	for range 1000 {
		herd.Go(func() {
			// A client of its own, which knows nothing yet.
			cell := discovery.New(tr, door.URL, nil)
			for {
				res, err := cell.ReadProxy().Fetch(t.Context(), req)
				if err == nil && res.GetPayloads()[0].GetError() != nil {
					err = rpc.FromInfo(res.GetPayloads()[0].GetError())
				}
				if err == nil {
					if data := res.GetPayloads()[0].GetData(); len(data) < len(want)/2 {
						t.Errorf("%d bytes are not the payload", len(data))
					}
					return
				}
				after := rpc.Info(err).GetRetryAfter().AsDuration()
				if after <= 0 {
					t.Errorf("refused without a hint: %v", err)
					return
				}
				<-time.After(after)
			}
		})
	}
	herd.Wait()
	reads, served := 0.0, 0.0
	for _, p := range proxies {
		m, err := program.Scrape(t.Context(), p.URL)
		if err != nil {
			t.Fatal(err)
		}
		reads += m["scribe_readproxy_store_reads_total"]
		served += m["scribe_readproxy_payloads_total"]
	}
	if reads != 1 || served != 1000 {
		t.Errorf("%v reads of the store, %v payloads were served", reads, served)
	}
}
