package test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/test/program"
)

// TestHTTP does with plain HTTP what the README does with curl: create a category, write a message, describe the result.
func TestHTTP(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	defer up.Stop()
	post(t, up.URL, "ControlService/CreateCategory", `{"category": {"name": "greetings", "retention": "3600s"}}`, http.StatusOK)
	post(t, up.URL, "WriteService/Publish", `{"category": "greetings", "messages": [{"text": "hello"}, {"payload": "d29ybGQ="}]}`, http.StatusOK)
	got := post(t, up.URL, "ControlService/GetCategory", `{"name": "greetings"}`, http.StatusOK)
	var described struct {
		Category struct{ Name, Retention string }
	}
	if err := json.Unmarshal(got, &described); err != nil || described.Category.Name != "greetings" || described.Category.Retention != "3600s" {
		t.Errorf("described as %s (%v)", got, err)
	}
	sameBytes(t, "what was published", tail(t, &cell{read: up.URL}, "greetings"), []byte("hello\nworld\n"))
	if got := post(t, up.URL, "ControlService/GetCategory", `{"name": "greeting"}`, http.StatusNotFound); strings.Contains(string(got), "greetings") != suggestsNames() {
		t.Errorf("the error does not suggest the near name: %s", got)
	}
	post(t, up.URL, "WriteService/Publish", `{"category": "greetings", "messages": []}`, http.StatusBadRequest)

	for path, want := range map[string]string{"/livez": "ok", "/readyz": "ok", "/metrics": "scribe_batcher_", "/v1/status": `{"health":"`, "/v1/traffic?interval=100ms": `"category":"greetings"`} {
		res, err := http.Get(up.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("GET %s: %s, %v, without %q:\n%.300s", path, res.Status, err, want, body)
		}
	}
}

// TestConnectionBounds: somebody who opens connections without end gets no more than the bound, and what was closed can be had again.
func TestConnectionBounds(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--address-connections", "16")
	defer up.Stop()
	address := program.Address(t, up.URL)
	answers := func() (c net.Conn, ok bool) {
		c, err := net.DialTimeout("tcp", address, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if program.Secured() {
			cfg := program.ClientFiles(t).ClientConfig()
			cfg.ServerName = "127.0.0.1"
			c = tls.Client(c, cfg)
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = fmt.Fprintf(c, "GET /livez HTTP/1.1\r\nHost: scribe\r\n\r\n") // the answer tells
		_, err = io.ReadFull(c, make([]byte, len("HTTP/1.1 200 OK")))
		return c, err == nil
	}
	var open []net.Conn
	served := 0
	for range 40 {
		c, ok := answers()
		if open = append(open, c); ok {
			served++
		}
	}
	if served == 0 || served > 16 {
		t.Errorf("%d of 40 connections are served, want some, and at most 16", served)
	}
	for _, c := range open {
		_ = c.Close()
	}
	eventually(t, time.Minute, "a connection can be had again", func() bool {
		c, ok := answers()
		_ = c.Close()
		return ok
	})
	eventually(t, time.Minute, "refusals are counted", func() bool {
		res, err := http.Get(up.URL + "/metrics")
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		body, _ := io.ReadAll(res.Body)
		return strings.Contains(string(body), `scribe_server_refused_total{bound="address"} `) &&
			!strings.Contains(string(body), `scribe_server_refused_total{bound="address"} 0`+"\n")
	})
}

// TestStatusOverHTTP: a process answers for its whole cell, also for those that a browser can't call, and a process that is gone is said.
func TestStatusOverHTTP(t *testing.T) {
	c := processes(t, []string{"SCRIBE_BLOBS=file", "SCRIBE_BLOB_PATH=" + filepath.Join(t.TempDir(), "blobs")})
	get := func(path string) string {
		res, err := http.Get(c.read + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: %s, %v: %s", path, res.Status, err, body)
		}
		return string(body)
	}
	var byCommand, byHTTP struct{ Members []struct{ ID string } }
	if err := json.Unmarshal(ok(t, nil, "status", "-o", "json", "--server", c.read), &byCommand); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(get("/v1/status")), &byHTTP); err != nil || len(byHTTP.Members) < 10 || !slices.Equal(byCommand.Members, byHTTP.Members) {
		t.Errorf("%v: members %v, the command has %v", err, byHTTP.Members, byCommand.Members)
	}
	if res, err := http.Get(c.read + "/v1/traffic?interval=1h"); err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("an hour: %v, %v", res, err)
	} else {
		_ = res.Body.Close()
	}
	produce(t, c, "counted", []byte("one\n"))
	if got := get("/v1/traffic?interval=100ms"); !strings.Contains(got, `"category":"counted"`) || strings.Contains(got, `"failed"`) {
		t.Errorf("traffic: %s", got)
	}
}

func post(t *testing.T, url, method, body string, status int) []byte {
	t.Helper()
	res, err := http.Post(url+"/scribe.v1."+method, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != status {
		t.Fatalf("POST %s: %s, want %d: %s", method, res.Status, status, answer)
	}
	return answer
}

// secureClient trusts the authority of SCRIBE_CA, and proves nothing.
func secureClient(t *testing.T) *http.Client {
	t.Helper()
	authorities := x509.NewCertPool()
	if pem, err := os.ReadFile(os.Getenv("SCRIBE_CA")); err != nil || !authorities.AppendCertsFromPEM(pem) {
		t.Fatal("no authority: ", err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS13}}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// TestCallerBound: the requests of one caller are bounded by who its token says it is; another caller is served meanwhile.
func TestCallerBound(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	up := serve(t, nil, "up", "--secure", "--data", data, "--listen", "127.0.0.1:0", "--caller-requests", "16")
	defer up.Stop()
	sourceFile(t, filepath.Join(data, "secure", "admin.env"))
	program.OK(t, nil, "category", "create", "quiet")
	reader := strings.TrimSpace(string(program.OK(t, nil, "token", "issue", "--name", "reader", "--can", "read:quiet")))
	client := secureClient(t)
	ask := func(token, path string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, up.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	for i := range 16 {
		if res := ask(reader, "/v1/tail/quiet?from=latest"); res.StatusCode != http.StatusOK {
			t.Fatalf("tail %d: %s", i, res.Status)
		}
	}
	if res := ask(reader, "/v1/status"); res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("request 17 of the caller: %s, want 429", res.Status)
	}
	if res := ask(os.Getenv("SCRIBE_TOKEN"), "/v1/status"); res.StatusCode != http.StatusOK {
		t.Errorf("a request of another caller: %s", res.Status)
	}
}
