package etcd

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"go.uber.org/zap"
)

// TestLogs: fields, those of With among them, and levels arrive; debugging does not.
func TestLogs(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	log := NewZapLogger(logger, clientLevel).With(zap.Int("n", 1))
	log.Debug("d")
	log.Info("i", zap.String("s", "x"))
	log.Warn("w")
	log.Error("e", zap.Error(errors.New("broken")))
	want := "level=DEBUG msg=\"etcd: i\" n=1 s=x\nlevel=DEBUG msg=\"etcd: w\" n=1\nlevel=INFO msg=\"etcd: e\" n=1 error=broken\n"
	if out.String() != want {
		t.Errorf("logged\n%swant\n%s", out.String(), want)
	}
	NewZapLogger(nil, clientLevel).Error("nowhere")
}
