// Package netfault puts faults between the processes of a test: a TCP proxy that hangs, cuts connections and loses answers, an
// HTTP proxy in front of an S3 server that fails requests before and after they were carried out, and a network of hosts whose cables
// can be pulled, also one way.
//
//	front := netfault.Listen(t, "127.0.0.1:0")
//	front.Target(server)          // host:port; may change, so that a restarted server keeps the proxy's address
//	front.Set(netfault.Hang)      // from now on no byte passes
//	front.Set(netfault.Pass)      // the bytes that waited pass, too
//
//	store := netfault.NewStore(t, "127.0.0.1:0", s3.Endpoint, seed)
//	store.Set(netfault.StoreFaults{CutAfter: 0.1, SlowDown: 0.1})
//
//	network := netfault.NewNetwork(t, seed) // Linux, root: hosts that are network namespaces
//	a, b := network.AddHost(), network.AddHost()
//	network.Set(a, b, netfault.Line{Cut: true}) // from now on nothing passes from a to b
//
// A seed determines which connection, request or chunk of bytes meets a fault. The arrival of requests and their division into chunks
// depend on the processes, so the same seed gives the same odds and the same sequence of draws, but not an identical run.
package netfault
