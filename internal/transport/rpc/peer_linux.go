package rpc

import (
	"net"
	"strconv"
	"syscall"
)

// peerUser returns the user at the other end of a Unix socket as the kernel knows it, "uid:1000"; empty if that can't be told.
func peerUser(c *net.UnixConn) (user string) {
	raw, err := c.SyscallConn()
	if err != nil {
		return ""
	}
	_ = raw.Control(func(fd uintptr) { // a closed connection has no user
		if peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			user = "uid:" + strconv.FormatUint(uint64(peer.Uid), 10)
		}
	})
	return user
}
