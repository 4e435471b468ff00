// Package remote is the served form of a metadata engine: [NewServer] makes an rpc.MetalogService of any metalog.Log, and
// [NewClient] a metalog.Log of any rpc.MetalogService. Either end may be in the same process as the other, or behind the adapters
// of package rpc.
//
// What an engine refuses comes back as the same error: sentinels and typed errors of package metalog match at the client as they
// do at the engine. They are recognised by a MetalogFault that the server attaches, and by nothing else, because they promise that
// the call changed nothing: a status that a proxy made up, a broken connection, or the reason of some other part of the system
// promise no such thing. All other errors therefore stay what they are, with an unknown outcome.
//
// A client does not connect again: a subscription whose connection breaks ends, and its caller begins a new one where it was.
package remote
