//go:build act

package github_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/github/githubtest"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

const (
	actModule   = "github.com/nektos/act@v0.2.89"
	actRunner   = "debian:bookworm-slim"              // what a job's container is made of
	actGo       = "golang:1.26-bookworm"              // GO_IMAGE of the Dockerfile
	actBase     = "nvcr.io/nvidia/tensorrt:24.11-py3" // BASE of the Dockerfile
	actLabel    = "ubuntu-24.04"                      // runs-on of pr-gate.yml
	actImageTag = "the image is built from the Dockerfile"
)

// bench is what the tests of whole workflows share.
type bench struct {
	t      *testing.T
	root   string // the repository
	tree   string // a checkout of it
	act    string
	ctx    context.Context // ends when the time is up
	docker string          // address of the engine; empty: none
	api    *githubtest.API
	apiURL string
	done   []report.Check
}

func (b *bench) note(id string, v report.Verdict, got string) {
	b.done = append(b.done, report.Check{ID: "act/" + id, Verdict: v, Got: got})
}

// actLimit bounds the whole test; what did not end by then was not run.
const actLimit = 25 * time.Minute

// TestActRunsThePullRequestWorkflow runs the workflow of this repository, with
// the action in its image, against stand-ins for GitHub. It needs root for an
// engine of its own, or one that answers and has the images already.
// TRTSHIP_ACT=if-possible turns what this machine lacks into NOT RUN, written
// down as missing; a check that ran and does not hold fails in any case.
func TestActRunsThePullRequestWorkflow(t *testing.T) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM) // an engine must not stay behind
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, actLimit)
	defer cancel()
	b := &bench{t: t, root: testkit.Root(t), ctx: ctx}
	defer b.write()
	if err := b.prepare(); err != nil {
		b.notRun("act", err)
		return
	}
	t.Run("host mode, without Docker", b.hostMode)
	if err := b.engine(); err != nil {
		b.notRun("engine", err)
		return
	}
	b.note("engine", report.Pass, "")
	t.Run("first push", b.firstPush)
	t.Run("second push edits the same comment", b.secondPush)
	t.Run("a fork's 403 leaves the verdict alone", b.forkPush)
	t.Run("read-only root and one volume", b.readOnly)
	t.Run("compose serves what was published", b.compose)
}

// notRun says that something could not be tried, which is not a pass.
func (b *bench) notRun(id string, err error) {
	b.note(id, report.Missing, tail(err.Error(), 500))
	b.t.Logf("NOT RUN: the action in its image: %v", err)
	if os.Getenv("TRTSHIP_ACT") != "if-possible" {
		b.t.Errorf("not run: %v (set TRTSHIP_ACT=if-possible to go on without)", err)
	}
}

// write records what was seen for the README's table.
func (b *bench) write() {
	text, err := report.Encode(map[string]any{"what": "the workflow pr-gate.yml and the action in act " + strings.TrimPrefix(actModule, "github.com/nektos/act@"), "checks": b.done})
	if err != nil {
		b.t.Error(err)
		return
	}
	if err := os.WriteFile(filepath.Join(b.root, "docs", "verification", "ci.json"), text, 0o644); err != nil {
		b.t.Error(err)
	}
}

// output runs a command and returns both of its streams.
func (b *bench) output(dir string, env []string, stdin io.Reader, name string, args ...string) (string, error) {
	return run(b.ctx, dir, env, stdin, name, args...)
}

func run(ctx context.Context, dir string, env []string, stdin io.Reader, name string, args ...string) (string, error) {
	path, err := proc.Look(name, os.Getenv("PATH")+":/usr/sbin:/sbin")
	if err != nil {
		return "", err
	}
	var out both
	err = proc.Run(ctx, proc.Command{Path: path, Args: args, Dir: dir, Env: append(os.Environ(), env...), Stdin: stdin, Stdout: &out, Stderr: &out})
	return out.String(), err
}

// both takes two streams that are written to at once.
type both struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *both) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *both) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

func (b *bench) must(dir string, env []string, stdin io.Reader, name string, args ...string) string {
	b.t.Helper()
	out, err := b.output(dir, env, stdin, name, args...)
	if err != nil {
		b.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, tail(out, 6000))
	}
	return out
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// prepare installs act, copies the repository and starts the stand-in. An error
// is what this machine lacks.
func (b *bench) prepare() error {
	cache, err := os.UserCacheDir()
	if err != nil {
		b.t.Fatal(err)
	}
	bin := filepath.Join(cache, "trtship", "act")
	b.act = filepath.Join(bin, "act")
	if _, err := os.Stat(b.act); err != nil {
		if out, err := b.output(b.root, []string{"GOBIN=" + bin, "GOFLAGS="}, nil, "go", "install", actModule); err != nil {
			return fmt.Errorf("act is not installed and cannot be now: %w\n%s", err, tail(out, 300))
		}
	}
	// Long-lived and large: not in the test's own folder, which is removed first.
	b.tree = filepath.Join(b.t.TempDir(), "model")
	b.must(b.root, nil, nil, "git", "clone", "-q", "--no-hardlinks", b.root, b.tree)
	b.must(b.tree, nil, nil, "go", "build", "-o", "bin/trtship", "./cmd/trtship")
	if err := os.CopyFS(filepath.Join(b.tree, ".github", "host"), os.DirFS(filepath.Join(b.root, "testdata", "github"))); err != nil {
		b.t.Fatal(err)
	}
	write(b.t, filepath.Join(b.t.TempDir(), "x"), "")
	b.api = &githubtest.API{Repository: "owner/model", Token: "act-token", Parents: map[string][]string{"b1": nil}, MergeBases: map[string]string{"b1...h1": "b1", "b1...h2": "b1"}, Comments: map[int][]githubtest.Comment{}}
	for i := range 130 {
		b.api.Comments[7] = append(b.api.Comments[7], githubtest.Comment{ID: int64(i + 1), Login: fmt.Sprint("user", i), Body: "hi"})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	server := &http.Server{Handler: b.api, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	b.t.Cleanup(func() { _ = server.Close() })
	b.apiURL = "http://" + l.Addr().String()
	return nil
}

// run runs a workflow with act and returns its log and whether it succeeded.
func (b *bench) run(t *testing.T, workflow, head, repo, artifacts string, docker bool) (string, error) {
	t.Helper()
	event := filepath.Join(t.TempDir(), "event.json")
	text, err := json.Marshal(map[string]any{
		"action": "synchronize", "number": 7, "repository": map[string]any{"full_name": "owner/model", "default_branch": "main"},
		"pull_request": map[string]any{"number": 7, "head": map[string]any{"sha": head, "ref": "f", "repo": map[string]any{"full_name": repo, "fork": repo != "owner/model"}}, "base": map[string]any{"sha": "b1", "ref": "main", "repo": map[string]any{"full_name": "owner/model"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, event, string(text))
	args := []string{
		"pull_request", "-W", workflow, "-e", event, "--pull=false", "-s", "GITHUB_TOKEN=act-token", "--env", "GITHUB_API_URL=" + b.apiURL, "--env", "GITHUB_REPOSITORY=owner/model",
		"--artifact-server-path", artifacts, "--artifact-server-addr", "127.0.0.1", "--artifact-server-port", freePort(t), "--cache-server-addr", "127.0.0.1", "--env", "GITHUB_RUN_ID=4242",
	}
	env := []string{"XDG_CACHE_HOME=" + cacheDir(t), "CI="}
	if docker {
		args = append(args, "-P", actLabel+"="+actRunner, "--network", "host", "--container-daemon-socket", "-", "--bind")
		env = append(env, "DOCKER_HOST="+b.docker)
	} else {
		args = append(args, "-P", actLabel+"=-self-hosted")
		env = append(env, "DOCKER_HOST=unix:///nonexistent/docker.sock", "PATH="+filepath.Join(b.tree, "bin")+":"+os.Getenv("PATH"))
	}
	return b.output(b.tree, env, nil, b.act, args...)
}

func cacheDir(t *testing.T) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func (b *bench) hostMode(t *testing.T) {
	artifacts := t.TempDir()
	log, err := b.run(t, ".github/host/host.yml", "h0", "owner/model", artifacts, false)
	b.check(t, "host-mode", func() error {
		if err != nil {
			return fmt.Errorf("%w\n%s", err, tail(log, 6000))
		}
		if !strings.Contains(log, "verdict=pass") {
			return fmt.Errorf("the output verdict is not pass:\n%s", tail(log, 6000))
		}
		return b.artifact(artifacts, "")
	})
	b.api.Comments[7] = b.api.Comments[7][:130] // the next test begins without a comment of ours
}

// check notes what came of a check, and fails the test if it does not hold.
func (b *bench) check(t *testing.T, id string, f func() error) {
	t.Helper()
	err := f()
	if b.ctx.Err() != nil {
		b.t = t
		b.notRun(id, fmt.Errorf("it was stopped, or the %s for the whole test are over", actLimit))
		return
	}
	if err != nil {
		b.note(id, report.Fail, tail(err.Error(), 500))
		t.Errorf("%s: %v", id, err)
		return
	}
	b.note(id, report.Pass, "")
}

// artifact demands that act's server got the report, and with the bytes that
// lie in the workspace if that is given.
func (b *bench) artifact(dir, workspace string) error {
	path := filepath.Join(dir, "4242", "trtship-digits-report", "trtship-digits-report.zip")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	z, err := zip.NewReader(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		return err
	}
	var names []string
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return err
		}
		got, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		names = append(names, f.Name)
		if workspace == "" {
			continue
		}
		rel := f.Name
		if rel != "report.json" && rel != provenance.FileName {
			rel = "reports/" + rel
		}
		want, err := os.ReadFile(filepath.Join(workspace, rel))
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s arrived with other bytes", f.Name)
		}
	}
	slices.Sort(names)
	if want := []string{"gate.json", "junit.xml", provenance.FileName, "report.html", "report.json", "report.md"}; !slices.Equal(names, want) {
		return fmt.Errorf("the artifact holds %v, want %v", names, want)
	}
	return nil
}

// actRoom is the room in bytes that the images need, with some to spare.
const actRoom = 16 << 30

// engine starts an engine of the test's own, with base images that are made
// here, where that is possible. An engine that answers already serves if it has
// the images; none are pulled, for the largest of them has many gigabytes.
func (b *bench) engine() error {
	_, lookErr := proc.Look("dockerd", os.Getenv("PATH")+":/usr/sbin:/sbin")
	if os.Geteuid() != 0 || lookErr != nil {
		return b.foreignEngine()
	}
	dir, err := os.MkdirTemp("/var/tmp", "trtship-act-")
	if err != nil {
		return err
	}
	b.t.Cleanup(func() {
		unmount(dir)
		_ = os.RemoveAll(dir)
	})
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil || int64(disk.Bavail)*disk.Bsize < actRoom {
		return fmt.Errorf("the images need %d GiB below /var/tmp (%w)", actRoom>>30, errors.Join(err, syscall.ENOSPC))
	}
	if err := b.startEngine(dir); err != nil {
		return err
	}
	if err := b.baseImages(dir); err != nil {
		return err
	}
	// An engine may answer and yet be kept from running anything.
	if out, err := b.output(dir, []string{"DOCKER_HOST=" + b.docker}, nil, "docker", "run", "--rm", "--network", "host", actRunner, "true"); err != nil {
		return fmt.Errorf("the engine cannot run a container: %w\n%s", err, tail(out, 400))
	}
	return nil
}

func (b *bench) foreignEngine() error {
	out, err := b.output(b.root, nil, nil, "docker", "version", "--format", "{{.Server.Version}}")
	if err != nil || strings.TrimSpace(out) == "" {
		return errors.New("no Docker engine answers, and only root with Debian's docker.io and debootstrap can start one")
	}
	b.docker = os.Getenv("DOCKER_HOST")
	if b.docker == "" {
		b.docker = "unix:///var/run/docker.sock"
	}
	for _, image := range []string{actRunner, actGo, actBase} {
		if _, err := b.output(b.root, nil, nil, "docker", "image", "inspect", image); err != nil {
			return fmt.Errorf("the engine at %s has no image %s", b.docker, image)
		}
	}
	return nil
}

// unmount lets go of what an engine left mounted below dir, the innermost first.
func unmount(dir string) {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return
	}
	var points []string
	for _, line := range strings.Split(string(text), "\n") {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			points = append(points, f[1])
		}
	}
	for i := len(points) - 1; i >= 0; i-- {
		_ = syscall.Unmount(points[i], syscall.MNT_DETACH)
	}
}

func (b *bench) startEngine(dir string) error {
	path, err := proc.Look("dockerd", os.Getenv("PATH")+":/usr/sbin:/sbin")
	if err != nil {
		return fmt.Errorf("%w (Debian: apt-get install docker.io debootstrap)", err)
	}
	log, err := os.Create(filepath.Join(dir, "dockerd.log"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	sock := "unix://" + filepath.Join(dir, "docker.sock")
	p, err := proc.Start(ctx, proc.Command{Path: path, Stdout: log, Stderr: log, Env: append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin"), Args: []string{
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), "-H", sock, "--pidfile", filepath.Join(dir, "pid"), "--iptables=false", "--bridge=none", "--ip-forward=false",
	}})
	if err != nil {
		cancel()
		return err
	}
	b.t.Cleanup(func() { cancel(); p.Stop() })
	for range 100 {
		_, err := b.output(dir, []string{"DOCKER_HOST=" + sock}, nil, "docker", "version")
		if err == nil {
			b.docker = sock
			return nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("dockerd is here, but not its client: %w", err)
		}
		select {
		case <-p.Done():
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("dockerd ended: %s", tail(string(text), 600))
		case <-time.After(200 * time.Millisecond):
		}
	}
	return errors.New("dockerd does not answer")
}

// baseImages makes the images that the Dockerfile and act start from, out of the
// distribution's packages and of what is installed here, so that nothing has to
// be pulled: Go with its modules, and Python with the locked environments.
func (b *bench) baseImages(dir string) error {
	rootfs := filepath.Join(dir, "rootfs")
	if err := b.debian(rootfs); err != nil {
		return err
	}
	if err := b.importImage(actRunner, nil, []string{"-C", rootfs, "."}); err != nil {
		return err
	}
	goroot := strings.TrimSpace(b.must(b.root, nil, nil, "go", "env", "GOROOT"))
	// A cache with the modules of this one alone, from what is here where it can.
	modules := filepath.Join(dir, "mod")
	proxy := "file://" + filepath.Join(strings.TrimSpace(b.must(b.root, nil, nil, "go", "env", "GOMODCACHE")), "cache", "download") + "," + strings.TrimSpace(b.must(b.root, nil, nil, "go", "env", "GOPROXY"))
	b.must(b.root, []string{"GOMODCACHE=" + modules, "GOPROXY=" + proxy, "GOSUMDB=off", "GOFLAGS=-modcacherw"}, nil, "go", "mod", "download")
	if err := b.importImage(actGo, []string{"ENV PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin GOPATH=/go GOPROXY=off GOSUMDB=off GOTOOLCHAIN=local"},
		[]string{"--transform=s,^" + strings.TrimPrefix(goroot, "/") + ",usr/local/go,", "--transform=s,^" + strings.TrimPrefix(modules, "/") + ",go/pkg/mod,", "-C", rootfs, ".", "-C", "/", strings.TrimPrefix(goroot, "/"), strings.TrimPrefix(modules, "/")}); err != nil {
		return err
	}
	return b.pythonImage(rootfs)
}

// debian makes a small Debian, from the mirror once for a user and from the
// user's cache folder after that, without a network.
func (b *bench) debian(rootfs string) error {
	kept := filepath.Join(cacheDir(b.t), "trtship", "act", "debian-bookworm-1.tar")
	if _, err := os.Stat(kept); err == nil {
		if err := os.MkdirAll(rootfs, 0o755); err != nil {
			return err
		}
		out, err := b.output(rootfs, nil, nil, "tar", "-xpf", kept, "--numeric-owner")
		if err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", kept, err, tail(out, 300))
		}
		return nil
	}
	mirror, err := debianMirror()
	if err != nil {
		return err
	}
	if out, err := b.output(b.root, nil, nil, "debootstrap", "--variant=minbase", "--include=ca-certificates,curl,git,gcc,libc6-dev,make", "bookworm", rootfs, mirror); err != nil {
		return fmt.Errorf("debootstrap: %w\n%s", err, tail(out, 600))
	}
	_ = os.RemoveAll(filepath.Join(rootfs, "var", "cache", "apt"))
	if out, err := b.output(rootfs, nil, nil, "tar", "-cf", kept+".new", "--numeric-owner", "."); err != nil {
		return fmt.Errorf("keep Debian: %w\n%s", err, tail(out, 300))
	}
	return os.Rename(kept+".new", kept)
}

func debianMirror() (string, error) {
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	for _, f := range append(files, "/etc/apt/sources.list") {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if m := regexp.MustCompile(`(?m)^(?:URIs:|deb(?: \[[^\]]*\])?) +(https?://\S+/debian)/?(?:\s|$)`).FindSubmatch(b); m != nil {
			return string(m[1]), nil
		}
	}
	return "", errors.New("the machine's apt sources name no Debian mirror")
}

// pythonImage is the Dockerfile's BASE: Python, and the environments where the
// image keeps them, so that `trtship env install` finds them done.
func (b *bench) pythonImage(rootfs string) error {
	cache := filepath.Join(cacheDir(b.t), "trtship")
	var markers []string
	for _, group := range []worker.Group{worker.GroupBase, worker.GroupTriton} {
		env, err := worker.LockedEnv(cache, group)
		if err != nil {
			return fmt.Errorf("%w: run `make setup`", err)
		}
		markers = append(markers, filepath.Join(env.Dir, "trtship-env.json"))
	}
	const home = "/opt/trtship/cache/trtship"
	path, pythons := "", map[string]bool{}
	for _, marker := range markers {
		env := filepath.Dir(marker)
		inside := filepath.Join(rootfs, home, filepath.Base(env))
		if err := b.link(env, inside); err != nil {
			return err
		}
		text, err := os.ReadFile(marker)
		if err != nil {
			return err
		}
		copied := filepath.Join(inside, filepath.Base(marker))
		if err := os.Remove(copied); err != nil { // a link: the one outside must stay as it is
			return err
		}
		write(b.t, copied, strings.ReplaceAll(string(text), cache, home))
		cfg, err := os.ReadFile(filepath.Join(env, "pyvenv.cfg"))
		if err != nil {
			return err
		}
		m := regexp.MustCompile(`(?m)^home = (.*)/bin$`).FindSubmatch(cfg)
		if m == nil || pythons[string(m[1])] {
			continue
		}
		python := string(m[1])
		pythons[python] = true
		path += python + "/bin:"
		if err := b.link(python, filepath.Join(rootfs, python)); err != nil {
			return err
		}
	}
	return b.importImage(actBase, []string{"ENV PATH=" + path + "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, []string{"-C", rootfs, "."})
}

// link copies a folder by hard links where it can.
func (b *bench) link(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if _, err := b.output(b.root, nil, nil, "cp", "-al", from, to); err == nil {
		return nil
	}
	_ = os.RemoveAll(to)
	out, err := b.output(b.root, nil, nil, "cp", "-a", from, to)
	if err != nil {
		return fmt.Errorf("copy %s: %w\n%s", from, err, tail(out, 300))
	}
	return nil
}

// importImage makes an image of what tar packs.
func (b *bench) importImage(name string, changes, tarArgs []string) error {
	r, w := io.Pipe()
	tarPath, err := proc.Look("tar", os.Getenv("PATH"))
	if err != nil {
		return err
	}
	packed := make(chan struct{})
	defer func() { // also where docker ended before it read all
		_ = r.Close()
		<-packed
	}()
	go func() {
		defer close(packed)
		w.CloseWithError(proc.Run(b.ctx, proc.Command{Path: tarPath, Args: append([]string{"-c"}, tarArgs...), Env: []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"}, Stdout: w}))
	}()
	args := []string{"import"}
	for _, c := range changes {
		args = append(args, "--change", c)
	}
	out, err := b.output(b.root, []string{"DOCKER_HOST=" + b.docker}, r, "docker", append(args, "-", name)...)
	if err != nil {
		return fmt.Errorf("docker import %s: %w\n%s", name, err, tail(out, 600))
	}
	return nil
}

func (b *bench) ours() []githubtest.Comment {
	var out []githubtest.Comment
	for _, c := range b.api.Snapshot().Comments[7] {
		if c.Login == "github-actions[bot]" {
			out = append(out, c)
		}
	}
	return out
}

func (b *bench) latestRun() (string, error) {
	runs, err := filepath.Glob(filepath.Join(b.tree, ".trtship", "runs", "*"))
	if err != nil || len(runs) == 0 {
		return "", fmt.Errorf("no run in the workspace: %v", err)
	}
	newest, at := "", time.Time{}
	for _, r := range runs {
		if info, err := os.Stat(filepath.Join(r, "report.json")); err == nil && info.ModTime().After(at) {
			newest, at = r, info.ModTime()
		}
	}
	return newest, nil
}

func (b *bench) firstPush(t *testing.T) {
	if err := os.RemoveAll(filepath.Join(b.tree, ".trtship")); err != nil {
		t.Fatal(err)
	}
	artifacts := t.TempDir()
	log, err := b.run(t, ".github/workflows/pr-gate.yml", "h1", "owner/model", artifacts, true)
	b.check(t, "image-and-run", func() error {
		if err != nil {
			return fmt.Errorf("%w\n%s", err, tail(log, 8000))
		}
		return nil
	})
	b.check(t, "outputs", func() error { return demand(log, "verdict pass, report .trtship/runs/") })
	b.check(t, "summary", func() error { return demand(log, "digits: every check held") })
	b.check(t, "artifact", func() error {
		run, err := b.latestRun()
		if err != nil {
			return err
		}
		return b.artifact(artifacts, run)
	})
	b.check(t, "comment", func() error {
		c := b.ours()
		if len(c) != 1 || !strings.HasPrefix(c[0].Body, "<!-- trtship-report:digits -->\n### ✅ digits") || !strings.Contains(c[0].Body, "`h1`") {
			return fmt.Errorf("comments %+v", c)
		}
		return nil
	})
	b.check(t, "contract", b.contract)
}

func demand(log, want string) error {
	if !strings.Contains(log, want) {
		return fmt.Errorf("the log does not say %q:\n%s", want, tail(log, 6000))
	}
	return nil
}

func (b *bench) contract() error {
	if v := b.api.Snapshot().Violations; len(v) > 0 {
		return errors.New(strings.Join(v, "\n"))
	}
	return nil
}

func (b *bench) secondPush(t *testing.T) {
	before := b.ours()
	log, err := b.run(t, ".github/workflows/pr-gate.yml", "h2", "owner/model", t.TempDir(), true)
	b.check(t, "second-push", func() error {
		after := b.ours()
		switch {
		case err != nil:
			return fmt.Errorf("%w\n%s", err, tail(log, 6000))
		case len(before) != 1 || len(after) != 1 || after[0].ID != before[0].ID:
			return fmt.Errorf("%d comments became %d", len(before), len(after))
		case !strings.Contains(after[0].Body, "`h2`"):
			return errors.New("the comment is not the second push's")
		}
		return b.contract()
	})
}

func (b *bench) forkPush(t *testing.T) {
	b.api.ReadOnly = true
	defer func() { b.api.ReadOnly = false }()
	before := b.ours()
	log, err := b.run(t, ".github/workflows/pr-gate.yml", "h3", "stranger/model", t.TempDir(), true)
	b.check(t, "fork", func() error {
		if err != nil {
			return fmt.Errorf("%w\n%s", err, tail(log, 6000))
		}
		if after := b.ours(); len(after) != len(before) || len(before) > 0 && after[0].Body != before[0].Body {
			return errors.New("a fork's run changed the comment")
		}
		if err := demand(log, "no comment was posted: the token of a fork's pull request can only read"); err != nil {
			return err
		}
		return demand(log, "verdict pass")
	})
}

// actImage is the image that act built from the Dockerfile.
func (b *bench) actImage() string {
	images := b.must(b.root, []string{"DOCKER_HOST=" + b.docker}, nil, "docker", "images", "--format", "{{.Repository}}:{{.Tag}}")
	for _, l := range strings.Split(images, "\n") {
		if strings.HasPrefix(l, "act-") {
			return l
		}
	}
	return ""
}

// readOnly runs the image that act built with a root that cannot be written.
func (b *bench) readOnly(t *testing.T) {
	env, image := []string{"DOCKER_HOST=" + b.docker}, b.actImage()
	work := t.TempDir()
	if err := os.CopyFS(filepath.Join(work, "digits"), os.DirFS(filepath.Join(b.root, "examples", "digits"))); err != nil {
		t.Fatal(err)
	}
	b.check(t, "read-only", func() error {
		if image == "" {
			return errors.New("act built no image")
		}
		out, err := b.output(b.root, env, nil, "docker", "run", "--rm", "--network", "host", "--read-only", "--tmpfs", "/tmp", "-v", work+":/work", image, "run", "digits/trtship.yaml")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, tail(out, 4000))
		}
		return demand(out, "every check held")
	})
}
