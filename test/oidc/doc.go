// Package oidc tests cells whose callers have tokens of an OpenID Connect issuer. The issuer is a process of its own (issuer), with a certified library: TestMain builds it.
package oidc
