package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"scribe/internal/transport/principal"
)

// Verified is what the client's certificate of a connection is worth. It does not change.
type Verified struct {
	// Principal is whom it names; anonymous without a certificate, or with one that proves nothing.
	Principal principal.Principal
	// Err says why there is no principal.
	Err error

	generation uint64
	notAfter   time.Time
}

// errNoCertificate is the Err of a connection without one.
var errNoCertificate = errors.New("the connection has no client certificate")

// VerifyClient says whom the client's certificate of a connection names. known is the answer of earlier for the same connection, nil at first: it
// is looked at again only after the authorities changed, and at its end. ended means that a certificate that was good is no longer: the caller ends
// the connection when it has answered. What was begun with a good certificate is carried out, so that replacing certificates fails nobody.
func (f *Files) VerifyClient(state *tls.ConnectionState, known *Verified) (v *Verified, ended bool) {
	m, now := f.latest(), f.now()
	if known != nil && known.generation == m.generation && (known.Err != nil || !now.After(known.notAfter)) {
		return known, false
	}
	v = m.verifyClient(state, now)
	if known != nil && known.Err == nil && v.Err != nil {
		return known, true
	}
	return v, false
}

func (m *material) verifyClient(state *tls.ConnectionState, now time.Time) *Verified {
	v := &Verified{generation: m.generation}
	if len(state.PeerCertificates) == 0 {
		v.Err = errNoCertificate
		return v
	}
	leaf := state.PeerCertificates[0]
	v.notAfter = leaf.NotAfter
	if m.clients == nil {
		v.Err = errors.New("the server asks for no client certificate")
		return v
	}
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: m.clients, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err == nil {
		for _, c := range chains[0] {
			if c.NotAfter.Before(v.notAfter) {
				v.notAfter = c.NotAfter
			}
		}
		v.Principal, err = principal.OfCertificate(leaf)
	}
	if err != nil {
		v.Principal, v.Err = principal.Principal{}, fmt.Errorf("the client certificate of %q proves nothing: %w", leaf.Subject.CommonName, explainClient(err, now))
	}
	return v
}

// explainClient says in words what is wrong with a client's certificate.
func explainClient(err error, now time.Time) error {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return errors.New("it is signed by an authority that the server does not know")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		if bad := checkTime(invalid.Cert, now); bad != nil {
			return fmt.Errorf("it %w", bad)
		}
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return errors.New("it is not for clients: its extended key usage lacks clientAuth")
	}
	return err
}
