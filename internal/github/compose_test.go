//go:build act

package github_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const composeModule = "github.com/docker/compose/v2@v2.40.3"

// composeBinary builds Docker's compose from its module, once for a user.
func (b *bench) composeBinary() (string, error) {
	path := filepath.Join(cacheDir(b.t), "trtship", "act", "docker-compose-2.40.3")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	out, err := b.output(b.root, []string{"GOFLAGS="}, nil, "go", "mod", "download", "-json", composeModule)
	if err != nil {
		return "", fmt.Errorf("download compose: %w\n%s", err, tail(out, 500))
	}
	_, dir, _ := strings.Cut(out, `"Dir": "`)
	dir, _, _ = strings.Cut(dir, `"`)
	src := filepath.Join(b.t.TempDir(), "compose")
	if err := os.CopyFS(src, os.DirFS(dir)); err != nil {
		return "", err
	}
	if out, err := b.output(src, []string{"GOFLAGS="}, nil, "go", "build", "-trimpath", "-o", path, "./cmd"); err != nil {
		return "", fmt.Errorf("build compose: %w\n%s", err, tail(out, 500))
	}
	return path, nil
}

// tritonScript stands in for the entry point of NVIDIA's image: it starts the
// real tritonserver of the locked environment on the repository that it is given.
const tritonScript = `#!/bin/sh
set -eu
PATH=${PATH#/opt/tritonserver/bin:} # or the program would find this script
for a; do case "$a" in --model-repository=*) repository=${a#*=} ;; esac; done
cd /tmp
trtship serve /digits/trtship.yaml --repository "$repository"
exec sleep infinity
`

// composeOverride is what the test changes: the engine has no bridge, waiting
// for what never becomes ready must end soon, and the locked environment's server
// runs a program that it puts into /tmp.
const composeOverride = `services:
  triton:
    network_mode: host
    ports: !reset []
    restart: "no"
    tmpfs: !override ["/tmp:exec"]
    healthcheck: {interval: 1s, retries: 2, start_period: %s}
`

// tritonImage builds the image that compose runs, on top of the action's.
func (b *bench) tritonImage(t *testing.T, base string) error {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "tritonserver"), tritonScript)
	if err := os.Chmod(filepath.Join(dir, "tritonserver"), 0o755); err != nil {
		return err
	}
	write(t, filepath.Join(dir, "Dockerfile"), "FROM "+base+"\nCOPY digits /digits\nCOPY tritonserver /opt/tritonserver/bin/tritonserver\nENV PATH=/opt/tritonserver/bin:$PATH\nENTRYPOINT []\n")
	if err := os.CopyFS(filepath.Join(dir, "digits"), os.DirFS(filepath.Join(b.root, "examples", "digits"))); err != nil {
		return err
	}
	out, err := b.output(dir, []string{"DOCKER_HOST=" + b.docker, "DOCKER_BUILDKIT=0"}, nil, "docker", "build", "-q", "-t", "trtship-triton:test", ".")
	if err != nil {
		return fmt.Errorf("build image: %w\n%s", err, tail(out, 500))
	}
	return nil
}

// compose starts examples/compose on the repository that the last run published.
func (b *bench) compose(t *testing.T) {
	binary, err := b.composeBinary()
	if err != nil {
		b.t = t
		b.notRun("compose", err)
		return
	}
	last, err := b.latestRun()
	if err != nil {
		t.Fatal(err)
	}
	repository := filepath.Join(t.TempDir(), "model_repository")
	link, err := filepath.EvalSymlinks(filepath.Join(last, "artifacts", "model_repository"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(repository, os.DirFS(link)); err != nil {
		t.Fatal(err)
	}
	if err := b.tritonImage(t, b.actImage()); err != nil {
		t.Fatal(err)
	}
	up := func(model, patience string) (string, error) {
		over := filepath.Join(t.TempDir(), "over.yaml")
		write(t, over, fmt.Sprintf(composeOverride, patience))
		env := []string{"DOCKER_HOST=" + b.docker, "TRITON_IMAGE=trtship-triton:test", "MODEL=" + model, "REPOSITORY=" + repository}
		args := []string{"-p", "trtship-test", "-f", filepath.Join(b.root, "examples", "compose", "compose.yaml"), "-f", over}
		t.Cleanup(func() { // also when the time is up
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_, _ = run(ctx, b.root, env, nil, binary, append(args, "down", "-t", "5")...)
		})
		out, err := b.output(b.root, env, nil, binary, append(args, "up", "--wait", "--detach")...)
		if err != nil {
			logs, _ := b.output(b.root, env, nil, binary, append(args, "logs", "--no-color")...)
			out += logs
		}
		return out, err
	}
	b.check(t, "compose", func() error {
		if out, err := up("digits", "180s"); err != nil {
			return fmt.Errorf("%w\n%s", err, tail(out, 3000))
		}
		resp, err := http.Get("http://127.0.0.1:8000/v2/models/digits")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || !strings.Contains(string(text), `"logits"`) {
			return fmt.Errorf("the server says %s, %v", text, err)
		}
		return nil
	})
	b.check(t, "compose-of-a-model-that-is-not-there", func() error {
		if out, err := up("no-such-model", "1s"); err == nil {
			return fmt.Errorf("healthy without its model:\n%s", tail(out, 1000))
		}
		return nil
	})
}
