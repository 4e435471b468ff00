package rpc

import "net"

// loopbackBuffer bounds the system's buffer of written bytes for a connection within the host. By default several megabytes may
// accumulate, which have left the processor's caches when they are read, so that a byte costs twice as much. Over a network the
// buffer compensates the delay, and the system chooses its size.
const loopbackBuffer = 256 << 10

// tuneLoopback bounds the system's write buffer of a TCP connection within the host.
func tuneLoopback(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if at, ok := tcp.RemoteAddr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
		_ = tcp.SetWriteBuffer(loopbackBuffer) // a failure costs only speed
	}
}
