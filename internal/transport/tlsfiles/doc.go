// Package tlsfiles is TLS from files: a process's certificate and key, and the authorities that it trusts.
//
//	files, err := tlsfiles.Open(tlsfiles.Config{Cert: "n1.pem", Key: "n1.key", CA: "ca.pem", ClientCA: "ca.pem"}, tlsfiles.Deps{Logger: log})
//	listener = tls.NewListener(listener, files.ServerConfig())
//	conn, err := files.Handshake(ctx, conn, "n2.example.net", "h2")
//
// The files are looked at again at handshakes, at most once a second, by their content. What is new counts from the next handshake on; connections
// that are there go on. A set of files that does not fit together (a certificate without its key, half a file) is not used: the process goes on
// with the former one, logs it, and looks again. So files may be replaced in any order, and old and new authorities may stand in one file.
//
// A server does not refuse a client's certificate in the handshake: [Files.VerifyClient] says whom it names, or why it proves nothing, so that the
// server can answer with words. A connection whose certificate no longer holds (it expired, or its authority was removed) is ended in good order:
// its client connects again, with what it has by then.
package tlsfiles
