package rpc

import (
	"net/url"
	"testing"
	"time"
)

func TestBaseURL(t *testing.T) {
	for addr, want := range map[string]string{
		"http://127.0.0.1:7420":         "http://127.0.0.1:7420",
		"http://127.0.0.1:7420/":        "http://127.0.0.1:7420",
		" " + "http://host:1/scribe// ": "http://host:1/scribe",
		"https://scribe.example":        "https://scribe.example",
		"127.0.0.1:7420":                "http://127.0.0.1:7420",
		"localhost":                     "http://localhost:7420",
		"localhost/":                    "http://localhost:7420",
		"host:80/scribe/":               "http://host:80/scribe",
		"host/scribe":                   "http://host:7420/scribe",
		":7420":                         "http://:7420",
		"[::1]:7420":                    "http://[::1]:7420",
		"[::1]":                         "http://[::1]:7420",
		"::1":                           "http://[::1]:7420",
		"unix:/run/Scribe.sock":         "http://2f72756e2f5363726962652e736f636b.unix-socket",
		"unix:///run/Scribe.sock":       "http://2f72756e2f5363726962652e736f636b.unix-socket",
		"unix:relative.sock":            "http://72656c61746976652e736f636b.unix-socket",
		"http://user:secret@host:1/":    "http://user:secret@host:1",
		"http://":                       "http:",
		"":                              "http://",
	} {
		if got := baseURL(addr); got != want {
			t.Errorf("%q is %q, want %q", addr, got, want)
		}
	}
}

func TestReadable(t *testing.T) {
	for addr, want := range map[string]string{
		"unix:/run/Scribe.sock":   "unix:/run/Scribe.sock/svc/Call",
		"host":                    "http://host:7420/svc/Call",
		"http://user:secret@host": "http://user:xxxxx@host/svc/Call",
		"http://zz.unix-socket":   "http://zz.unix-socket/svc/Call",
	} {
		u, err := url.Parse(baseURL(addr) + "/svc/Call")
		if err != nil {
			t.Fatal(err)
		}
		if got := readableURL(u); got != want {
			t.Errorf("%q is shown as %q, want %q", addr, got, want)
		}
	}
}

func TestRetryAfterSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{1: "1", time.Second: "1", time.Second + 1: "2", time.Minute: "60"} {
		if got := retryAfterSeconds(d); got != want {
			t.Errorf("%s is %s", d, got)
		}
	}
}

// A buffer is as long as asked, wastes little, and goes back to where its like is looked for.
