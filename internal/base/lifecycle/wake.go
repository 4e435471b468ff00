package lifecycle

// WakeChannel wakes the goroutine that receives from it. A pending signal covers every change before it is received.
type WakeChannel chan struct{}

// NewWakeChannel returns a channel without a signal.
func NewWakeChannel() WakeChannel { return make(WakeChannel, 1) }

// WakeUp sends a signal, unless one is pending. It never blocks.
func (c WakeChannel) WakeUp() {
	select {
	case c <- struct{}{}:
	default:
	}
}
