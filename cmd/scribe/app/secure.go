package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"scribe/internal/base/atomicfile"
	"scribe/internal/base/backoff"
	"scribe/internal/base/config"
	"scribe/internal/cell/access"
	"scribe/internal/transport/certificates"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/tlsfiles"
	scribev1 "scribe/proto/scribe/v1"
)

// What a secure process makes is in the folder secure of its data: an authority, its own certificate, and admin.env. A node finds authority and certificate there: nodes need
// one authority, whose key is on none of them.
const (
	authorityLife   = 10 * 365 * 24 * time.Hour
	certificateLife = 365 * 24 * time.Hour
	// certificateLeft is how long a certificate must be valid at the start; else it is replaced.
	certificateLeft = 60 * 24 * time.Hour
	// administrator is the principal of the token in admin.env; that of a node has the node's name behind it.
	administrator = "admin"
)

func (c *Config) secureFile(name string) string { return filepath.Join(c.Data, "secure", name) }

// AdminFile is where a secure process writes what its administrator exports.
func (c *Config) AdminFile() string { return c.secureFile("admin.env") }

// checkSecure checks what --secure does by itself.
func (c *Config) checkSecure(v *config.Violations) {
	switch {
	case !c.Secure:
	case !c.TLS.IsEmpty():
		v.Add("Secure", "it makes certificates by itself: want either that or the files of --tls-cert")
	case !c.Has(ControlPlane) || c.Control != "":
		v.Add("Secure", "it is for a process that is a cell by itself: want scribe up")
	}
}

// asSecure returns the configuration of a secure process with the files that makeSecure makes.
func (c Config) asSecure() Config {
	if c.Secure {
		ca := c.secureFile(SecureAuthority)
		c.TLS = tlsfiles.Config{Cert: c.secureFile(SecureCert), Key: c.secureFile(SecureKey), CA: ca, ClientCA: ca}
	}
	return c
}

// makeSecure makes the authority and the certificate of a secure process where they are missing, will expire soon, or are not for its
// addresses.
func (c *Config) makeSecure(now time.Time, log *slog.Logger) error {
	if err := os.MkdirAll(filepath.Dir(c.AdminFile()), 0o700); err != nil {
		return fmt.Errorf("folder of certificates: %w", err)
	}
	files := c.TLS
	if c.Node != "" {
		return c.checkNodeFiles()
	}
	ca, caKey := files.CA, c.secureFile("ca.key")
	if _, err := os.Stat(ca); errors.Is(err, fs.ErrNotExist) {
		pair, err := certificates.NewAuthority("scribe", now, authorityLife)
		if err == nil {
			err = errors.Join(removeFile(caKey), pair.Write(ca, caKey))
		}
		if err != nil {
			return fmt.Errorf("make an authority: %w", err)
		}
	}
	hosts := c.secureHosts()
	if !fitsCertificate(files.Cert, ca, hosts, now) {
		authority, err := certificates.LoadAuthority(ca, caKey, now)
		if left := certificateTime(files.Cert, ca, now); errors.Is(err, fs.ErrNotExist) && left > 0 {
			log.Warn("the certificate of this process has to be replaced, and the key of its authority is not here: put it back and start again", "key", caKey, "ends_in", left, "hosts", hosts)
			return nil
		}
		if err != nil {
			return fmt.Errorf("the certificate of this process has to be replaced: %w", err)
		}
		pair, err := authority.Issue(certificates.Request{Name: "server", Kind: principal.Member, Server: true, Hosts: hosts, Now: now, Lifetime: certificateLife})
		if err == nil {
			err = errors.Join(removeFile(files.Cert), removeFile(files.Key))
		}
		if err == nil {
			err = pair.Write(files.Cert, files.Key)
		}
		if err != nil {
			return fmt.Errorf("make the certificate of this process: %w", err)
		}
	}
	return nil
}

// SecureFiles are the names of the authority, the certificate and the key in the folder of a secure process.
const (
	SecureAuthority = "ca.pem"
	SecureCert      = "server.pem"
	SecureKey       = "server.key"
)

// checkNodeFiles reports that a secure node was not given its files, or has those of a process alone, whose authority no other node has.
func (c *Config) checkNodeFiles() error {
	if caKey := c.secureFile("ca.key"); isFile(caKey) {
		return fmt.Errorf("%s is the key of an authority, as a secure process alone makes one, and a node keeps none: move it and %s into a folder DIR on a machine that is not of the cell, make the files of all nodes with scribe cert nodes --cluster %s --dir DIR, and put the folder %s/secure into %s: clients that know the authority go on",
			caKey, c.TLS.CA, strings.Join(c.Cluster, ","), c.Node, c.Data)
	}
	for _, file := range []string{c.TLS.CA, c.TLS.Cert, c.TLS.Key} {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("a secure node does not make certificates, since all nodes need one authority: make them anywhere with scribe cert nodes --cluster %s, and put the folder %s/secure into %s: %w",
				strings.Join(c.Cluster, ","), c.Node, c.Data, err)
		}
	}
	return nil
}

func isFile(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// secureHosts are the names and addresses at which others may reach the process, beside those of loopback.
func (c *Config) secureHosts() (hosts []string) {
	add := func(host string) {
		if host != "" && host != "localhost" && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	if u, err := url.Parse(c.Advertise); err == nil {
		add(u.Hostname())
	}
	host, _, _ := net.SplitHostPort(c.Listen) // validated
	ip := net.ParseIP(host)
	switch {
	case host != "" && ip == nil || ip != nil && !ip.IsUnspecified() && !ip.IsLoopback():
		add(host)
	case host == "" || ip.IsUnspecified(): // every address of the machine
		name, _ := os.Hostname()
		add(name)
		addresses, _ := net.InterfaceAddrs()
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
				add(n.IP.String())
			}
		}
	}
	return hosts
}

// fitsCertificate reports whether the certificate in a file can be used at some hosts for a while.
func fitsCertificate(file, authority string, hosts []string, now time.Time) bool {
	if certificateTime(file, authority, now) < certificateLeft {
		return false
	}
	list, err := certificates.Read(file)
	return err == nil && !slices.ContainsFunc(hosts, func(host string) bool { return list[0].VerifyHostname(host) != nil })
}

// certificateTime returns how long the certificate in a file is valid; 0 if it is not, or not of the authority.
func certificateTime(file, authority string, now time.Time) time.Duration {
	list, err := certificates.Read(file)
	if err != nil {
		return 0
	}
	signers, err := certificates.Read(authority)
	if err != nil || list[0].CheckSignatureFrom(signers[0]) != nil {
		return 0
	}
	return max(list[0].NotAfter.Sub(now), 0)
}

func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// startAdministrator writes what the administrator exports, with the token that is there or, if that may not administer the cell any
// more, a new one. When it returns the process knows the token.
func (a *App) startAdministrator(ctx context.Context) error {
	path := a.cfg.AdminFile()
	token := readAdminToken(path)
	if !a.administers(token) {
		var err error
		if token, err = a.issueAdministrator(ctx); err != nil {
			return fmt.Errorf("issue the administrator's token: %w", err)
		}
	}
	ca, err := filepath.Abs(a.cfg.TLS.CA)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("export SCRIBE_SERVER=%s\nexport SCRIBE_TOKEN=%s\nexport SCRIBE_CA='%s'\n", a.advertisedURL(), token, strings.ReplaceAll(ca, "'", `'\''`))
	if err := atomicfile.WriteBytes(path, []byte(text)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	for {
		_, replaced := a.parts.rights.Watch()
		if a.administers(token) {
			a.log.Info("the cell is secure: what its administrator exports is in a file", "file", path)
			return nil
		}
		select {
		case <-replaced:
		case <-ctx.Done():
			return fmt.Errorf("the administrator's token is not known yet: %w", context.Cause(ctx))
		}
	}
}

// adminPrincipal is whom the token in admin.env proves. Those of nodes have names of their own, so that the one of a node that is lost can be found and revoked.
func (c *Config) adminPrincipal() string {
	if c.Node == "" {
		return administrator
	}
	return administrator + "-" + c.Node
}

// issueAdministrator issues a token that may do everything, and leaves none behind whose text was lost with its answer.
func (a *App) issueAdministrator(ctx context.Context) (string, error) {
	var before map[string]bool
	err := a.askAccess(ctx, func() (err error) {
		before, err = a.administratorTokens(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	var res *scribev1.IssueTokenResponse
	attempts := 0
	err = a.askAccess(ctx, func() (err error) {
		attempts++
		res, err = a.parts.access.IssueToken(ctx, &scribev1.IssueTokenRequest{Principal: a.cfg.adminPrincipal(), Rules: []string{"all:*"}})
		return err
	})
	if err != nil || attempts == 1 {
		return res.GetText(), err
	}
	before[res.GetToken().GetId()] = true
	return res.GetText(), a.askAccess(ctx, func() error { return a.revokeAdministrators(ctx, before) })
}

// askAccess asks the control plane, again while it may answer later: among nodes the one that leads may be changing. That there are too many tokens is not for waiting.
func (a *App) askAccess(ctx context.Context, ask func() error) error {
	pauses := backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second, Random: a.opts.Host.Random.Named("administrator")}
	for failures := 1; ; failures++ {
		err := ask()
		failure := retry.Classify(err)
		if !failure.Class.Retryable() || failure.Class == retry.Overloaded || backoff.Sleep(ctx, max(pauses.Pause(failures), failure.After)) != nil {
			return err
		}
	}
}

// administratorTokens returns the ids of the tokens of this process's administrator that are not revoked.
func (a *App) administratorTokens(ctx context.Context) (map[string]bool, error) {
	ids := map[string]bool{}
	for req := (&scribev1.ListTokensRequest{}); ; {
		res, err := a.parts.access.ListTokens(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, t := range res.GetTokens() {
			if t.GetPrincipal() == a.cfg.adminPrincipal() && t.GetRevokedAt() == 0 {
				ids[t.GetId()] = true
			}
		}
		if req.After = res.GetNext(); !res.GetMore() {
			return ids, nil
		}
	}
}

// revokeAdministrators revokes the tokens of this process's administrator but some.
func (a *App) revokeAdministrators(ctx context.Context, but map[string]bool) error {
	ids, err := a.administratorTokens(ctx)
	if err != nil {
		return err
	}
	for id := range ids {
		if but[id] {
			continue
		}
		if _, err := a.parts.access.RevokeToken(ctx, &scribev1.RevokeTokenRequest{Id: id}); err != nil {
			return err
		}
	}
	return nil
}

// administers reports whether a token may operate the cell, as far as this process knows.
func (a *App) administers(token string) bool {
	set, now := a.parts.rights.Set(), a.opts.Host.Now()
	p, cause := set.Authenticate(token, now)
	return cause == access.Allowed && set.Decide(p, access.Operate, "", "", now) == access.Allowed
}

// readAdminToken returns the token in a file that startAdministrator wrote; "" if there is none.
func readAdminToken(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if token, ok := strings.CutPrefix(strings.TrimSpace(line), "export SCRIBE_TOKEN="); ok {
			return token
		}
	}
	return ""
}
