package app

import (
	"context"

	"scribe/internal/transport/discovery"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/sequencer"
)

func (a *App) startSequencer(context.Context) error {
	streams := a.parts.readStream
	if streams == nil {
		streams = discovery.New(a.transport, a.controlURL()).ReadStream()
	}
	s, err := sequencer.New(a.cfg.Sequencer, sequencer.Deps{
		Log: a.parts.log, Streams: streams, Categories: a.parts.catalog, Members: a.sequencerIDs, ID: a.id, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("sequencer", s.Close)
	return nil
}

// controlURL is where the control plane is reached: at this process when it has it.
func (a *App) controlURL() string {
	if a.cfg.Control != "" {
		return a.cfg.Control
	}
	return a.url
}

// sequencerIDs are the members that share the sequenced categories.
func (a *App) sequencerIDs() []string {
	members := a.parts.members.Members(scribev1.Role_ROLE_SEQUENCER)
	ids := make([]string, 0, len(members))
	for _, m := range members {
		ids = append(ids, m.GetId())
	}
	return ids
}
