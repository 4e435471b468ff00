package rpc

import "net"

// loopbackBuffer is how much the system keeps of what was written to a connection within the host. Left to itself it lets several
// megabytes pile up, which have fallen out of the processor's caches when they are read: a byte costs twice as much then. Over a
// network the buffer bridges the delay, and is the system's to choose.
const loopbackBuffer = 256 << 10

// tuneLoopback bounds what the system keeps of what is written to a TCP connection within the host.
func tuneLoopback(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if at, ok := tcp.RemoteAddr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
		_ = tcp.SetWriteBuffer(loopbackBuffer) // what can't be set stays as it is: it is a matter of speed alone
	}
}
