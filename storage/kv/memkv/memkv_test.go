package memkv_test

import (
	"testing"

	"go.uber.org/goleak"

	"scribe/storage/kv"
	"scribe/storage/kv/kvtest"
	"scribe/storage/kv/memkv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAcceptance(t *testing.T) {
	kvtest.Run(t, kvtest.StoreFactory{
		Open:      func(*testing.T) kv.Store { return memkv.New() },
		OpenShort: func(*testing.T) kv.Store { return memkv.New(memkv.WithHistory(64)) },
	})
}
