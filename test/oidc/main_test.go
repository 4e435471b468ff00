package oidc

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"scribe/internal/transport/certificates/certtest"
	"scribe/internal/transport/tlsfiles"
	"scribe/test/program"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "scribe-issuer-")
	if err != nil {
		panic(err)
	}
	buildIssuer = sync.OnceValues(func() (string, error) {
		binary := filepath.Join(dir, "issuer")
		build := program.Command(context.Background(), "go", "build", "-o", binary, ".")
		build.Dir, build.Stderr = "issuer", os.Stderr
		return binary, build.Run()
	})
	code := program.Main(m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// buildIssuer returns the program of the issuer.
var buildIssuer func() (string, error)

// issuer is an issuer that runs.
type issuer struct {
	*program.Process
	t      testing.TB
	url    string
	client *http.Client
	args   []string
}

// startIssuer starts an issuer with a certificate of an authority.
func startIssuer(t testing.TB, ca *certtest.Authority) *issuer {
	t.Helper()
	cert, key := ca.Server("issuer")
	files, err := tlsfiles.Open(tlsfiles.Config{CA: ca.File}, tlsfiles.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	address := program.Reserve(t)
	transport := &http.Transport{TLSClientConfig: files.ClientConfig()}
	t.Cleanup(transport.CloseIdleConnections)
	i := &issuer{t: t, url: "https://" + address, client: &http.Client{Transport: transport}, args: []string{"-listen", address, "-cert", cert, "-key", key}}
	i.start()
	return i
}

// start starts the process, and waits until it answers.
func (i *issuer) start() {
	i.t.Helper()
	binary, err := buildIssuer()
	if err != nil {
		i.t.Fatalf("build the issuer: %v", err)
	}
	i.Process = program.Other(i.t, binary, i.args...)
	program.Await(i.t, "the issuer serves", func() bool {
		res, err := i.client.Get(i.url + "/.well-known/openid-configuration")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// token returns a token of a program, with what scopes say.
func (i *issuer) token(name string, scopes ...string) (string, error) {
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {name}, "client_secret": {"secret"}, "scope": {strings.Join(scopes, " ")}}
	res, err := i.client.PostForm(i.url+"/oauth/token", form)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Token == "" {
		return "", fmt.Errorf("the issuer answers %s: %s", res.Status, text)
	}
	return answer.Token, nil
}

// mustToken is token for this cell.
func (i *issuer) mustToken(name string, scopes ...string) string {
	i.t.Helper()
	text, err := i.token(name, append(scopes, "aud:cell")...)
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

// rotate has another key sign; the former ones stay if keep.
func (i *issuer) rotate(keep bool) error {
	at := i.url + "/rotate"
	if keep {
		at += "?keep=true"
	}
	res, err := i.client.Post(at, "", http.NoBody)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the issuer answers %s", res.Status)
	}
	return nil
}

// cell is `scribe up --secure` with an issuer.
type cell struct {
	*program.Process
	t      testing.TB
	client *http.Client
	admin  string
	args   []string
	data   string
}

// startCell starts a cell that takes tokens of an issuer. Commands run as its administrator until another token is taken.
func startCell(t *testing.T, of *issuer, ca *certtest.Authority, more ...string) *cell {
	t.Helper()
	c := &cell{t: t, data: filepath.Join(t.TempDir(), "data")}
	c.args = append([]string{
		"up", "--secure", "--data", c.data, "--listen", program.Reserve(t), "--oidc-issuer", of.url, "--oidc-audience", "cell", "--oidc-ca", ca.File, "--oidc-roles-claim", "groups",
	}, more...)
	c.start(t)
	return c
}

func (c *cell) start(t *testing.T) {
	t.Helper()
	c.Process = program.Serve(t, nil, c.args...)
	f, err := os.Open(filepath.Join(c.data, "secure", "admin.env"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "=")
		t.Setenv(name, strings.Trim(value, "'"))
	}
	c.admin = os.Getenv("SCRIBE_TOKEN")
	files, err := tlsfiles.Open(tlsfiles.Config{CA: os.Getenv("SCRIBE_CA")}, tlsfiles.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: files.ClientConfig(), MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	c.client = &http.Client{Transport: transport}
}

// as runs fn with another token.
func (c *cell) as(t *testing.T, token string, fn func()) {
	t.Helper()
	t.Setenv("SCRIBE_TOKEN", token)
	fn()
	t.Setenv("SCRIBE_TOKEN", c.admin)
}

// call makes a request with a token.
func (c *cell) call(method, path, token, body string) (status int, text string, err error) {
	req, err := http.NewRequest(method, c.URL+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := c.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	return res.StatusCode, string(answer), err
}

// publish writes a message with a token.
func (c *cell) publish(token string) (status int, text string, err error) {
	return c.call(http.MethodPost, "/scribe.v1.WriteService/Publish", token, `{"category": "orders", "messages": [{"text": "one"}]}`)
}

// metrics are the metrics of the cell.
func (c *cell) metrics(t *testing.T) program.Metrics {
	t.Helper()
	m, err := program.ScrapeWith(t.Context(), &http.Client{Transport: withToken{c.client.Transport, c.admin}}, c.URL)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// withToken sends a token with each request.
type withToken struct {
	http.RoundTripper
	token string
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	return w.RoundTripper.RoundTrip(r)
}

// want fails unless a command ends with an exit code, and says some texts.
func want(t *testing.T, r program.Result, code int, says ...string) {
	t.Helper()
	if r.Code != code {
		t.Errorf("exit code %d, want %d: %s%s", r.Code, code, r.Stdout, r.Stderr)
	}
	for _, text := range says {
		if !strings.Contains(string(r.Stdout)+string(r.Stderr), text) {
			t.Errorf("it does not say %q: %s%s", text, r.Stdout, r.Stderr)
		}
	}
}
