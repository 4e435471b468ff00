package rpc

import "net"

// loopbackBuffer is how much the system buffers of a connection within the host, in each direction. Left to itself it lets several
// megabytes pile up, which fall out of the processor's caches between the two copies that they are written and read with: that
// costs twice as much a byte. Over a network buffers bridge the delay, and stay the system's.
const loopbackBuffer = 256 << 10

// tuneLoopback bounds the system's buffers of a TCP connection within the host.
func tuneLoopback(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if at, ok := tcp.RemoteAddr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		return
	}
	// What can't be set stays as it is: it is a matter of speed alone.
	_ = tcp.SetReadBuffer(loopbackBuffer)
	_ = tcp.SetWriteBuffer(loopbackBuffer)
}
