package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"scribe/cmd/scribe/survey"
	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// What only the command line could find out, since it can call every process, a browser learns from the one that it may call.
const (
	statusPattern  = "GET /v1/status"
	trafficPattern = "GET /v1/traffic"
)

// serveStatus answers with what "scribe status -o json" prints. The process asks the others for those callers whom they would answer themselves.
func (a *App) serveStatus(w http.ResponseWriter, r *http.Request) {
	st, err := a.enforced(rpc.Services{Control: a.parts.gateway}).Control.GetStatus(r.Context(), &scribev1.GetStatusRequest{})
	if err != nil {
		rpc.RefuseRequest(w, r, err)
		return
	}
	if !a.tellsDetails(r.Context()) {
		writeJSON(w, survey.DescribeCell(a.advertisedURL(), st).JSON())
		return
	}
	writeJSON(w, survey.ExamineCell(r.Context(), a.transport, a.advertisedURL(), st).JSON())
}

// Bounds of the time over which traffic is measured, during which the request waits.
const (
	leastTrafficInterval = 100 * time.Millisecond
	mostTrafficInterval  = 10 * time.Second
	usualTrafficInterval = 2 * time.Second
	// mostTrafficRows bounds the categories of an answer.
	mostTrafficRows = 1000
)

// serveTraffic answers with what "scribe top -o json" prints, for those who may monitor the cell.
func (a *App) serveTraffic(w http.ResponseWriter, r *http.Request) {
	interval := units.Duration(usualTrafficInterval)
	if text := r.URL.Query().Get("interval"); text != "" {
		var err error
		if interval, err = units.ParseDuration(text); err != nil || interval.Std() < leastTrafficInterval || interval.Std() > mostTrafficInterval {
			http.Error(w, fmt.Sprintf("invalid interval %.32q: want %v to %v, such as 2s", text, leastTrafficInterval, mostTrafficInterval), http.StatusBadRequest)
			return
		}
	}
	before, err := a.sampleTraffic(r)
	if err == nil {
		t := time.NewTimer(interval.Std())
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.Context().Done():
			return
		}
		var after *survey.TrafficSample
		if after, err = a.sampleTraffic(r); err == nil {
			choice := survey.RowChoice{Sort: "bytes", By: "category", Rows: mostTrafficRows}
			writeJSON(w, choice.CompareSamples(before, after))
			return
		}
	}
	rpc.RefuseRequest(w, r, err)
}

func (a *App) sampleTraffic(r *http.Request) (*survey.TrafficSample, error) {
	st, err := a.parts.gateway.GetStatus(r.Context(), &scribev1.GetStatusRequest{})
	if err != nil {
		return nil, err
	}
	s, err := survey.SampleCell(r.Context(), a.transport, st)
	if err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "traffic: %v", err)
	}
	return s, nil
}

// writeJSON answers with an object that nobody may keep.
func writeJSON(w http.ResponseWriter, object any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(object) // fails only if the client went away
}
