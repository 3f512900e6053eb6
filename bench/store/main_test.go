package main

import (
	"context"
	"testing"
)

func TestBenchStore(t *testing.T) {
	r, err := measure(context.Background(), 64<<20, 3, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("64 MiB: put %.3f s, cp+sync+sha256sum %.3f s, ratio %.2f; publish %.3f s, open %.3f s",
		median(r.PutSeconds), median(r.PeerSeconds), r.Ratio, median(r.PubSeconds), median(r.OpenSeconds))
	if len(r.PutSeconds) != 3 || len(r.PeerSeconds) != 3 || r.Bytes != 64<<20 || r.Ratio <= 0 {
		t.Errorf("result %+v", r)
	}
}
