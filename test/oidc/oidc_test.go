package oidc

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"scribe/internal/cell/oidc/oidctest"
	"scribe/internal/transport/certificates/certtest"
	"scribe/test/program"
)

// TestIssuer: tokens of an issuer open what is granted to their names and roles, over the command line, HTTP and SQL, and nothing else; what is wrong with one is said, counted by its cause
// and explained.
func TestIssuer(t *testing.T) {
	ca := certtest.New(t, "issuers", time.Now())
	of, other := startIssuer(t, ca), startIssuer(t, ca)
	c := startCell(t, of, ca)
	program.OK(t, nil, "category", "create", "orders")
	program.OK(t, nil, "grant", "oidc:shop", "write:orders")
	program.OK(t, nil, "grant", "role:oidc:readers", "read,query:orders")
	program.OK(t, nil, "grant", "role:oidc:operators", "operate:*")
	writer, reader := of.mustToken("shop"), of.mustToken("bi", "group:readers", "group:others")
	c.as(t, writer, func() {
		want(t, program.Run(t, strings.NewReader("one\n"), "produce", "orders"), 0)
		want(t, program.Run(t, nil, "tail", "orders", "--from", "earliest", "--until-end"), 4, `client "oidc:shop" may not`)
		want(t, program.Run(t, nil, "token", "list"), 4, "may not")
	})
	c.as(t, reader, func() {
		want(t, program.Run(t, nil, "tail", "orders", "--from", "earliest", "--until-end", "-o", "raw"), 0, "one")
		want(t, program.Run(t, strings.NewReader("x\n"), "produce", "orders"), 4, "may not")
	})
	if status, text, err := c.call(http.MethodGet, "/v1/query?format=csv&sql="+url.QueryEscape("SELECT payload FROM orders"), reader, ""); err != nil || status != 200 || !strings.Contains(text, "one") {
		t.Errorf("a query: %d, %s, %v", status, text, err)
	}
	c.as(t, of.mustToken("ada", "group:operators"), func() { want(t, program.Run(t, nil, "token", "list"), 0, "admin") })

	file := filepath.Join(t.TempDir(), "token")
	explain := func(text string, code int, says ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		want(t, program.Run(t, nil, "access", "check", "--token-file", file, "--do", "read", "--on", "orders"), code, says...)
	}
	explain(reader, 0, "the token proves oidc:bi with role:oidc:others role:oidc:readers, valid until", "allowed: read,query:orders, of role:oidc:readers")
	explain(writer, 4, "the token proves oidc:shop", "denied: no rule allows it")
	explain(c.admin, 0, "the token proves admin, valid until it is revoked")
	want(t, program.Run(t, nil, "access", "check", "--as", "oidc:x", "--role", "role:oidc:readers", "--do", "read", "--on", "orders"), 0, "of role:oidc:readers")

	text := func(at *issuer, scopes ...string) string {
		t.Helper()
		token, err := at.token("shop", scopes...)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	head, _, _ := strings.Cut(writer, ".")
	for cause, token := range map[string]string{
		"expired": text(of, "aud:cell", "ttl:-60"), "wrong_audience": text(of, "aud:cells"), "wrong_issuer": text(other, "aud:cell"), "bad_token": head + ".!.AAAA", "bad_signature": writer[:len(writer)-8] + "AAAAAAAA",
	} {
		before := c.metrics(t).Sum(`scribe_access_denials_total{cause="` + cause + `"}`)
		if status, answer, err := c.publish(token); err != nil || status != http.StatusUnauthorized {
			t.Errorf("%s: %d, %s, %v", cause, status, answer, err)
		}
		if n := c.metrics(t).Sum(`scribe_access_denials_total{cause="` + cause + `"}`); n != before+1 {
			t.Errorf("%s: counted %v after %v", cause, n, before)
		}
	}
	explain(text(of, "aud:cells"), 4, `its audience is "cells", and not "cell"`)
	explain(text(of, "aud:cell", "ttl:-60"), 4, "it has expired at")
	explain(text(other, "aud:cell"), 4, "its issuer is")
}

// TestRotation: while programs write with new tokens all the time, the issuer rotates its keys. No right request is refused. Those of a key that it withdraws are.
func TestRotation(t *testing.T) {
	ca := certtest.New(t, "issuers", time.Now())
	of := startIssuer(t, ca)
	c := startCell(t, of, ca, "--oidc-refresh", "1h")
	program.OK(t, nil, "category", "create", "orders")
	program.OK(t, nil, "grant", "oidc:shop", "write:orders")
	first := of.mustToken("shop")
	done := make(chan struct{})
	var programs sync.WaitGroup
	var mu sync.Mutex
	written := 0
	for range 4 {
		programs.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				token, err := of.token("shop", "aud:cell")
				if err != nil {
					t.Error(err)
					return
				}
				status, text, err := c.publish(token)
				if err != nil || status != http.StatusOK {
					t.Errorf("a right request: %d, %s, %v", status, text, err)
					return
				}
				mu.Lock()
				written++
				mu.Unlock()
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return written
	}
	for range 5 {
		before := count()
		if err := of.rotate(true); err != nil {
			t.Fatal(err)
		}
		program.Await(t, "programs write with tokens of the next key", func() bool { return t.Failed() || count() >= before+12 })
	}
	if status, text, err := c.publish(first); err != nil || status != http.StatusOK {
		t.Errorf("a token of the first key, which the issuer still has: %d, %s, %v", status, text, err)
	}
	close(done)
	programs.Wait()
	if err := of.rotate(false); err != nil {
		t.Fatal(err)
	}
	if status, text, err := c.publish(of.mustToken("shop")); err != nil || status != http.StatusOK {
		t.Errorf("a token of the newest key: %d, %s, %v", status, text, err)
	}
	if status, text, err := c.publish(first); err != nil || status != http.StatusUnauthorized {
		t.Errorf("a token of a key that was withdrawn: %d, %s, %v", status, text, err)
	}
}

// TestIssuerAway: while the issuer does not answer, tokens of its known keys count, also after a restart of the cell, and status says what is wrong. Tokens of unknown keys are no
// refusals then, and a flood of them neither reaches the issuer nor keeps right ones out.
func TestIssuerAway(t *testing.T) {
	ca := certtest.New(t, "issuers", time.Now())
	of := startIssuer(t, ca)
	c := startCell(t, of, ca, "--oidc-refresh", "1s", "--oidc-timeout", "300ms")
	program.OK(t, nil, "category", "create", "orders")
	program.OK(t, nil, "grant", "oidc:shop", "write:orders")
	token := of.mustToken("shop")
	right := func(what string) {
		t.Helper()
		if status, text, err := c.publish(token); err != nil || status != http.StatusOK {
			t.Errorf("%s: %d, %s, %v", what, status, text, err)
		}
	}
	right("at the beginning")
	of.Pause()
	program.Await(t, "status says that the issuer is away", func() bool {
		r := program.Run(t, nil, "status")
		return strings.Contains(string(r.Stdout), "issuer of tokens") && strings.Contains(string(r.Stdout), "known go on")
	})
	right("while the issuer is away")
	c.Stop()
	c.start(t)
	right("after a restart")

	stranger := oidctest.NewKey(t, "", jose.ES256)
	claims := map[string]any{"iss": of.url, "aud": "cell", "sub": "shop", "exp": time.Now().Add(time.Hour).Unix()}
	flood := func(id int) string {
		k := stranger
		k.KeyID = fmt.Sprintf("k%d", id)
		return oidctest.Sign(t, k, jose.ES256, claims, nil)
	}
	if status, text, err := c.publish(flood(0)); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("a token of a key that nobody knows now: %d, %s, %v", status, text, err)
	}
	of.Resume()
	program.Await(t, "status is well again", func() bool { return !strings.Contains(string(program.OK(t, nil, "status")), "issuer of tokens") })
	fetches, begun := c.metrics(t).Sum("scribe_oidc_key_fetches_total"), time.Now()
	var strangers sync.WaitGroup
	for id := range 300 {
		text := flood(id)
		strangers.Go(func() {
			if status, answer, err := c.publish(text); err != nil || status != http.StatusUnauthorized {
				t.Errorf("a token of an unknown key: %d, %s, %v", status, answer, err)
			}
		})
	}
	for range 20 {
		right("in the flood")
	}
	strangers.Wait()
	// One each second, however many ask.
	if n, most := c.metrics(t).Sum("scribe_oidc_key_fetches_total")-fetches, 2+time.Since(begun).Seconds(); n > most {
		t.Errorf("%v fetches of keys, of which there may be %v", n, most)
	}
}

// TestTokenRenewed: who tails with a token in a file goes on when somebody renews it, beyond the end of the first; without that the tail ends.
func TestTokenRenewed(t *testing.T) {
	ca := certtest.New(t, "issuers", time.Now())
	of := startIssuer(t, ca)
	c := startCell(t, of, ca)
	program.OK(t, nil, "category", "create", "orders")
	program.OK(t, nil, "grant", "role:oidc:readers", "read:orders")
	const life = 5 * time.Second
	begun := time.Now()
	short := of.mustToken("bi", "group:readers", fmt.Sprintf("ttl:%d", int(life.Seconds())))
	file := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	put(short)
	env := []string{"SCRIBE_TOKEN=", "SCRIBE_TOKEN_FILE=" + file}
	renewed := program.OtherWith(t, env, program.Binary(), "tail", "orders", "--from", "earliest", "-n", "2", "-o", "raw")
	ended := program.OtherWith(t, []string{"SCRIBE_TOKEN=" + short}, program.Binary(), "tail", "orders", "--from", "earliest", "-n", "2", "-o", "raw")
	program.OK(t, strings.NewReader("one\n"), "produce", "orders")
	for _, p := range []*program.Process{renewed, ended} {
		program.Await(t, "the tail has the first message", func() bool { return strings.Contains(p.Log.String(), "one") })
	}
	put(of.mustToken("bi", "group:readers"))
	<-ended.Done
	if after := time.Since(begun); after < life-time.Second {
		t.Errorf("the tail without another token ends after %v: %s", after, ended.Log)
	}
	if !strings.Contains(ended.Log.String(), "expired") && !strings.Contains(ended.Log.String(), "has ended") {
		t.Errorf("it says %s", ended.Log)
	}
	program.OK(t, strings.NewReader("two\n"), "produce", "orders")
	<-renewed.Done
	if renewed.Err != nil || !strings.Contains(renewed.Log.String(), "two") {
		t.Errorf("the tail with another token: %v: %s", renewed.Err, renewed.Log)
	}
	if end := c.metrics(t).Sum("scribe_oidc_keys"); end != 1 {
		t.Errorf("%v keys", end)
	}
}
