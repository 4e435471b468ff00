// Package oidc proves principals by tokens (JWT) that an issuer of OpenID Connect has signed. A [Verifier] has the issuer's keys, and says of a
// token whom it names, with which roles and until when:
//
//	v, err := oidc.New(cfg, oidc.Deps{File: "DATA/oidc-keys", Logger: log})
//	go v.Run(ctx) // fetches keys
//	p, err := v.Verify(ctx, text, sha256.Sum256([]byte(text))) // err is an *access.TokenError
//
// What a principal may do is package access's: an issuer proves names and roles, and grants give rights to them. Names begin with a prefix, so that who
// administers the issuer can't take a name of the cell.
//
// Keys come from a file, from a URL, or from where the issuer's discovery document says. A token whose key is not known has them fetched once more, at most
// once in Config.RefetchEvery however many such tokens come; it waits for that. While the issuer is away the keys that were fetched last count for
// Config.Keep, also after a restart. A set without any is an answer: all are withdrawn.
//
// Signatures, keys and JSON are go-jose's: it compares names of claims by case, refuses duplicates, and verifies with the algorithms that it is told.
package oidc
