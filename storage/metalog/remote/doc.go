// Package remote serves a metadata engine over RPC: [NewServer] turns a metalog.Log into an rpc.MetalogService, and [NewClient]
// an rpc.MetalogService into a metalog.Log. The two ends may be in one process, or connected by the adapters of package rpc.
//
// An engine's definite errors reach the client unchanged: sentinels and typed errors of package metalog match at the client as
// they do at the engine. They are recognised only by a MetalogFault that the server attaches, because they promise that the call
// changed nothing. A status made up by a proxy, a broken connection, or an error of another part of the system promises no such
// thing. All other errors therefore stay as they are, with an unknown outcome.
//
// A client does not reconnect: a subscription whose connection breaks ends, and its caller starts a new one from its position.
package remote
