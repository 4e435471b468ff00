package program

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitPaused waits until no thread of a child runs any more: SIGSTOP reaches them one by one. It leaves the child to who waits for its end.
func awaitPaused(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
