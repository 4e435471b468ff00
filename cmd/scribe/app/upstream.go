package app

import (
	"context"
	"time"

	"scribe/internal/base/logthrottle"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	// firstAnswer is how long the first question to an agent's upstream may take, and upstreamInterval the pause before the next one.
	firstAnswer      = 2 * time.Second
	upstreamInterval = 5 * time.Second
)

// greetUpstream asks an agent's upstream until it has answered once, and logs whether it did: an address that is wrong is found at the start, not
// when the spool is full.
func (a *App) greetUpstream() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	a.onStop("greeting", func(context.Context) error {
		cancel()
		<-done
		return nil
	})
	upstream := rpc.NewControlClient(a.transport, a.cfg.Upstream)
	keeps := "messages are kept in memory, and refused when that is full"
	if dir := a.cfg.spoolDir(); dir != "" {
		keeps = "messages are kept in " + dir
	}
	go func() {
		defer close(done)
		var trouble logthrottle.Throttle
		for {
			err := askOnce(ctx, upstream)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				trouble.Recovered(ctx, a.log, "the upstream answers", "upstream", a.cfg.Upstream)
				return
			}
			trouble.Failed(ctx, a.log, "the upstream has not answered yet: "+keeps, "upstream", a.cfg.Upstream, "error", err)
			select {
			case <-time.After(upstreamInterval):
			case <-ctx.Done():
				return
			}
		}
	}()
}

func askOnce(ctx context.Context, upstream rpc.ControlService) error {
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	_, err := upstream.GetStatus(ctx, &scribev1.GetStatusRequest{})
	return err
}
