// Command issuer is an OpenID Connect issuer for tests: the certified library of ZITADEL with its storage in memory, which gives tokens to whoever knows the secret of
// a program (client_credentials), as JWT. Scopes say what is in a token: aud:NAME, group:NAME and ttl:SECONDS. Of its own it has only keys that rotate:
//
//	POST /rotate?keep=true    the next key signs; without keep, the former ones are withdrawn
//
// It has a module of its own, so that the program does not depend on the library. When it serves, it prints "ready" on standard output.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// secret is that of every program.
const secret = "secret"

func main() {
	address := flag.String("listen", "127.0.0.1:0", "address to serve on")
	cert := flag.String("cert", "", "file with the certificate")
	key := flag.String("key", "", "file with its key")
	flag.Parse()
	if err := serve(*address, *cert, *key); err != nil {
		log.Fatal(err)
	}
}

func serve(address, cert, keyFile string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	issuer := "https://" + l.Addr().String()
	s := &store{Storage: storage.NewStorage(storage.NewUserStore(issuer))}
	if err := s.rotate(false); err != nil {
		return err
	}
	provider, err := op.NewProvider(&op.Config{CryptoKey: sha256.Sum256([]byte(issuer)), CryptoKeyId: "1"}, s, op.StaticIssuer(issuer))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", provider)
	mux.HandleFunc("POST /rotate", func(w http.ResponseWriter, r *http.Request) {
		if err := s.rotate(r.FormValue("keep") != ""); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	fmt.Println("ready", issuer)
	return (&http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}).ServeTLS(l, cert, keyFile)
}

// store is the library's storage in memory, with other keys, programs and tokens.
type store struct {
	*storage.Storage

	mu   sync.Mutex
	keys []*key // the last one signs
}

// key is a key of the issuer; public is how it is published.
type key struct {
	id      string
	private *rsa.PrivateKey
}

func (k *key) ID() string                                  { return k.id }
func (k *key) SignatureAlgorithm() jose.SignatureAlgorithm { return jose.RS256 }
func (k *key) Key() any                                    { return k.private }

type public struct{ *key }

func (k public) Algorithm() jose.SignatureAlgorithm { return jose.RS256 }
func (k public) Use() string                        { return "sig" }
func (k public) Key() any                           { return &k.private.PublicKey }

// rotate has another key sign.
func (s *store) rotate(keep bool) error {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !keep {
		s.keys = nil
	}
	s.keys = append(s.keys, &key{id: rand.Text(), private: private})
	return nil
}

// SigningKey implements op.Storage.
func (s *store) SigningKey(context.Context) (op.SigningKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[len(s.keys)-1], nil
}

// SignatureAlgorithms implements op.Storage.
func (s *store) SignatureAlgorithms(context.Context) ([]jose.SignatureAlgorithm, error) {
	return []jose.SignatureAlgorithm{jose.RS256}, nil
}

// KeySet implements op.Storage.
func (s *store) KeySet(context.Context) (keys []op.Key, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keys {
		keys = append(keys, public{k})
	}
	return keys, nil
}

// program is a client that gets tokens for itself.
type program struct{ *storage.Client }

func (program) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }
func (program) GrantTypes() []oidc.GrantType {
	return []oidc.GrantType{oidc.GrantTypeClientCredentials}
}

// ClientCredentials implements op.ClientCredentialsStorage: every name is that of a program.
func (s *store) ClientCredentials(_ context.Context, id, given string) (op.Client, error) {
	if given != secret {
		return nil, fmt.Errorf("wrong secret of %s", id)
	}
	return program{storage.WebClient(id, secret)}, nil
}

// ClientCredentialsTokenRequest implements op.ClientCredentialsStorage.
func (s *store) ClientCredentialsTokenRequest(_ context.Context, id string, scopes []string) (op.TokenRequest, error) {
	return &oidc.JWTTokenRequest{Subject: id, Audience: valuesOf(scopes, "aud:"), Scopes: scopes}, nil
}

// CreateAccessToken implements op.Storage.
func (s *store) CreateAccessToken(_ context.Context, request op.TokenRequest) (string, time.Time, error) {
	ttl := 3600
	for _, value := range valuesOf(request.GetScopes(), "ttl:") {
		var err error
		if ttl, err = strconv.Atoi(value); err != nil {
			return "", time.Time{}, err
		}
	}
	return rand.Text(), time.Now().Add(time.Duration(ttl) * time.Second), nil
}

// GetPrivateClaimsFromScopes implements op.Storage.
func (s *store) GetPrivateClaimsFromScopes(_ context.Context, _, _ string, scopes []string) (map[string]any, error) {
	return map[string]any{"groups": valuesOf(scopes, "group:")}, nil
}

// valuesOf returns what follows a word in scopes.
func valuesOf(scopes []string, word string) (values []string) {
	for _, scope := range scopes {
		if value, ok := strings.CutPrefix(scope, word); ok {
			values = append(values, value)
		}
	}
	return values
}
