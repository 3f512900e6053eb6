package registry_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/triton/registry"
)

// broken are options that ask once and are not patient.
var broken = registry.Options{
	PlainHTTP: true, Once: true, Silence: 300 * time.Millisecond,
	Credential: func(context.Context, string) (string, string, error) { return "u", "p", nil },
}

// whatRegistry says what is wrong with an error of a registry.
func whatRegistry(err error) string {
	if c := failure.CodeOf(err); c != failure.Artifact {
		return fmt.Sprintf("code %d", c)
	}
	return ""
}

// A registry that answers a pull wrongly gives nothing: no half of a model is
// left, and what is there is whole.
func TestBrokenRepliesToAPull(t *testing.T) {
	from := repository(t)
	full := &remote{blobs: map[string][]byte{}, manifests: map[string][]byte{}}
	if _, err := registry.Publish(t.Context(), from, "m", parse(t, testkit.Serve(t, full)+"/team/m:v1"), broken); err != nil {
		t.Fatal(err)
	}
	testkit.BreakReplies(t, "broken reply of a registry to a pull", func() http.Handler { return full }, func(ctx context.Context, address string) (string, error) {
		to := t.TempDir()
		_, err := registry.Pull(ctx, parse(t, address+"/team/m:v1"), to, true, broken)
		if err != nil {
			if left, _ := os.ReadDir(to); len(left) > 0 {
				return "", fmt.Errorf("%s is left after %w", left[0].Name(), err)
			}
			return "", err
		}
		equal(t, from, to)
		return "whole", nil
	}, func(err error) string {
		if _, ok := err.(*failure.Error); !ok { //nolint:errorlint // the outermost
			return "left behind"
		}
		return whatRegistry(err)
	})
}

// What was not taken whole was not published.
func TestBrokenRepliesToAPush(t *testing.T) {
	from := repository(t)
	var r *remote
	testkit.BreakReplies(t, "broken reply of a registry to a push", func() http.Handler {
		r = &remote{blobs: map[string][]byte{}, manifests: map[string][]byte{}}
		return r
	}, func(ctx context.Context, address string) (string, error) {
		p, err := registry.Publish(ctx, from, "m", parse(t, address+"/team/m:v1"), broken)
		if err != nil {
			return "", err
		}
		if _, ok := r.manifests["v1"]; !ok {
			return "", fmt.Errorf("it is said to be at %s, which holds nothing", filepath.Base(p.Reference))
		}
		return p.Digest, nil
	}, whatRegistry)
}
