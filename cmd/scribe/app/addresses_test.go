package app

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"scribe/consumer"
	"scribe/producer"
	"scribe/scribed/spool"
)

// nowhere is an address that refuses connections.
const nowhere = "http://127.0.0.1:1"

// TestSomeAddressesGone: every process and client finds its cell by a list of which one address answers, also at its start.
func TestSomeAddressesGone(t *testing.T) {
	dir := t.TempDir()
	up := func(name string, set func(*Config), roles ...Role) string {
		c := DefaultConfig()
		c.Roles, c.ID, c.Listen = roles, name, "127.0.0.1:0"
		c.Data, c.Blobs.Path = filepath.Join(dir, name), filepath.Join(dir, "blobs")
		set(&c)
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		a, err := Start(t.Context(), c, Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stopNow(t, a) })
		return nowhere + "," + a.URL()
	}
	meta := up("meta", func(*Config) {}, ControlPlane, Metalog)
	cell := up("rest", func(c *Config) { c.Control, c.Metalog = meta, meta }, Batcher, WriteProxy, ReadStream, ReadProxy)
	agent := up("agent", func(c *Config) {
		c.Upstream = cell
		c.Scribed.Spool = new(spool.DefaultConfig())
		c.Scribed.Spool.Dir = filepath.Join(dir, "spool")
	}, Scribed)
	for _, server := range []string{cell, agent} {
		p, err := producer.New(server)
		if err != nil {
			t.Fatal(err)
		}
		p.Log("c", []byte("m"))
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("through %s: %v", server, err)
		}
	}
	c, err := consumer.New(agent+","+cell[len(nowhere)+1:], "c", consumer.WithStart(consumer.Earliest()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	read := 0
	for _, err := range c.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if read++; read == 2 {
			break
		}
	}
	if _, err := producer.New("a,,b"); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("a producer of an invalid list: %v", err)
	}
	if _, err := consumer.New("a,b,a", "c"); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a consumer of an invalid list: %v", err)
	}
}

// TestAddressViolations: each setting tells what is wrong with its list.
func TestAddressViolations(t *testing.T) {
	c := DefaultConfig()
	c.Roles = []Role{Batcher, Scribed}
	c.Control, c.Metalog, c.Upstream = "http://a:1,b", "http://a:1,,http://b:1", "http://a:1,http://a:1/"
	err := c.Validate()
	if err == nil {
		t.Fatal("valid")
	}
	for _, want := range []string{
		`control (--control): invalid value "b": want http://host:port`,
		`metalog (--metalog): an address in "http://a:1,,http://b:1" is empty: want addresses separated by single commas`,
		`upstream (--upstream): the address "http://a:1/" is in "http://a:1,http://a:1/" twice`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %s:\n%v", want, err)
		}
	}
	c.Roles, c.Control, c.Metalog, c.Upstream = []Role{Batcher}, "http://a:1, http://b:1", "http://a:1,http://b:1", ""
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
