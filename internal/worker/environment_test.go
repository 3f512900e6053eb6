package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/worker"
)

func TestLockFilesPinEverythingWithHashesAndNameNoIndex(t *testing.T) {
	for _, group := range worker.Groups {
		t.Run(string(group), func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("env", string(group)+".lock"))
			if err != nil {
				t.Fatal(err)
			}
			packages, err := worker.Packages(group)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(text, []byte("://")) || bytes.Contains(text, []byte("index-url")) {
				t.Error("the lock file names a place on the network")
			}
			hashes := regexp.MustCompile(`--hash=sha256:[0-9a-f]{64}`).FindAll(text, -1)
			if len(hashes) < len(packages) {
				t.Errorf("%d hashes for %d packages", len(hashes), len(packages))
			}
			for _, p := range packages {
				if p.Bytes == 0 {
					t.Errorf("%s has no size", p.Name)
				}
				if len(p.Hashes) == 0 || !bytes.Contains(text, []byte(p.Name+"=="+p.Version+" \\\n    --hash=sha256:"+p.Hashes[0])) {
					t.Errorf("%s has the hashes %q", p.Name, p.Hashes)
				}
			}
		})
	}
	if _, err := worker.Packages("no-such"); failure.CodeOf(err) != failure.Usage {
		t.Errorf("an unknown group: %v, want exit 2", err)
	}
}

func TestTheCacheFolderFollowsTheEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"XDG_CACHE_HOME":                    {map[string]string{"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/trtship"},
		"a relative value counts as unset":  {map[string]string{"XDG_CACHE_HOME": "x", "HOME": "/h"}, "/h/.cache/trtship"},
		"HOME":                              {map[string]string{"HOME": "/h"}, "/h/.cache/trtship"},
		"neither is the caller's to settle": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := worker.CacheHome(func(k string) string { return c.env[k] })
			if got != c.want || (c.want == "") != (failure.CodeOf(err) == failure.Usage) {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestTheInterpreterIsTheNamedOneOrTheLockedOne(t *testing.T) {
	bin := t.TempDir()
	mine := filepath.Join(bin, "mine")
	if err := os.WriteFile(mine, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	for name, c := range map[string]struct {
		explicit, env, want string
		code                failure.Code
	}{
		"--python by name":              {"mine", "/no/such", mine, failure.OK},
		"--python by path":              {mine, "", mine, failure.OK},
		"TRTSHIP_PYTHON":                {"", mine, mine, failure.OK},
		"a named one that is not there": {"no-such", mine, "", failure.Missing},
		"none, and nothing installed":   {"", "", "", failure.Missing},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := worker.FindPython(c.explicit, c.env, empty, bin)
			if got != c.want || failure.CodeOf(err) != c.code {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestPipSeesOnlyWhatItNeeds(t *testing.T) {
	got := worker.PipEnv([]string{"PIP_INDEX_URL=a", "https_proxy=b", "HOME=/h", "SECRET=c", "PYTHONPATH=d", "SSL_CERT_FILE=e", "LD_PRELOAD=f"})
	if d := cmp.Diff([]string{"PIP_INDEX_URL=a", "https_proxy=b", "HOME=/h", "SSL_CERT_FILE=e"}, got); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
}

// fakePython answers like an interpreter for the lock files, makes "virtual
// environments" that contain a copy of itself, and counts what pip was asked.
func fakePython(t *testing.T, version string, fail string) (path, calls string) {
	t.Helper()
	bin := t.TempDir()
	calls = filepath.Join(bin, "calls")
	script := fmt.Sprintf(`#!/bin/sh
echo "$0 $*" >> %[1]s
case "$*" in
*"import importlib.util"*) echo '{"version":"%[2]s","machine":"linux-x86_64","venv":true,"ensurepip":true,"lib_python":"","purelib":"'$(dirname $(dirname $0))'/lib/site-packages"}' ;;
*"-m venv"*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
*"-m pip"*) echo "pip at work" >&2; exit %[3]s ;;
esac
`, calls, version, fail)
	path = filepath.Join(bin, "python3")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, calls
}

func options(home, python string) (worker.InstallOptions, *[]string) {
	var told []string
	return worker.InstallOptions{
		CacheHome: home, Python: python, Path: filepath.Dir(python) + ":/usr/bin:/bin",
		Announce: func(group worker.Group, dir string, packages []worker.Package) {
			told = append(told, fmt.Sprintf("%s %d", group, len(packages)))
		},
	}, &told
}

func TestAnEnvironmentIsInstalledOnceAndAnnouncedBefore(t *testing.T) {
	home := filepath.Join(t.TempDir(), "cache")
	python, calls := fakePython(t, "3.11", "0")
	opt, told := options(home, python)
	ctx := context.Background()
	announced := ""
	inner := opt.Announce
	opt.Announce = func(group worker.Group, dir string, packages []worker.Package) {
		b, _ := os.ReadFile(calls)
		announced = string(b)
		inner(group, dir, packages)
	}
	// A folder without its marker is what an interrupted installation leaves.
	first, err := worker.LockedEnv(home, worker.GroupTriton)
	if failure.CodeOf(err) != failure.Missing || !strings.Contains(err.(*failure.Error).Hint, "trtship env install triton") {
		t.Fatalf("before: %+v, %v", first, err)
	}
	env, err := worker.EnsureEnv(ctx, worker.GroupTriton, opt)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(announced, "-m venv") || strings.Contains(announced, "-m pip") {
		t.Errorf("announced after the work began: %s", announced)
	}
	if d := cmp.Diff([]string{"triton 2"}, *told); d != "" {
		t.Errorf("announced (-want +got):\n%s", d)
	}
	if env.Version != "3.11" || !strings.HasPrefix(env.Python, env.Dir) || filepath.Dir(env.Dir) != home {
		t.Errorf("environment %+v", env)
	}
	again, err := worker.EnsureEnv(ctx, worker.GroupTriton, opt)
	if err != nil || again != env {
		t.Errorf("again %+v, %v", again, err)
	}
	text, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "-m pip install --require-hashes --no-deps"); n != 1 {
		t.Errorf("pip was asked %d times, want once:\n%s", n, text)
	}
	if err := os.Remove(filepath.Join(env.Dir, "trtship-env.json")); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(env.Dir, "stale")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := worker.EnsureEnv(ctx, worker.GroupTriton, opt); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); err == nil {
		t.Error("a half-made environment was built upon")
	}
}

func TestTwoInstallationsAtOnceDoTheWorkOnce(t *testing.T) {
	home := filepath.Join(t.TempDir(), "cache")
	python, calls := fakePython(t, "3.12", "0")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			opt, _ := options(home, python)
			if _, err := worker.EnsureEnv(context.Background(), worker.GroupBase, opt); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	text, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "-m pip"); n != 1 {
		t.Errorf("pip was asked %d times, want once", n)
	}
}

func TestAFailedInstallationLeavesNothingThatCountsAsInstalled(t *testing.T) {
	home := filepath.Join(t.TempDir(), "cache")
	python, _ := fakePython(t, "3.11", "1")
	opt, _ := options(home, python)
	_, err := worker.EnsureEnv(context.Background(), worker.GroupTriton, opt)
	if failure.CodeOf(err) != failure.Missing || !strings.Contains(err.Error(), "pip at work") {
		t.Errorf("error %v, want exit 3 with pip's words", err)
	}
	if _, err := worker.LockedEnv(home, worker.GroupTriton); err == nil {
		t.Error("a failed installation counts as installed")
	}
}

func TestAPythonThatDoesNotSuitIsNamedWithTheReason(t *testing.T) {
	python, _ := fakePython(t, "3.14", "0")
	opt, _ := options(t.TempDir(), python)
	opt.Python, opt.Path = "", filepath.Dir(python)
	_, err := worker.EnsureEnv(context.Background(), worker.GroupBase, opt)
	if failure.CodeOf(err) != failure.Missing {
		t.Fatalf("error %v, want exit 3", err)
	}
	for _, text := range []string{"is Python 3.14", "python3.12: not in PATH", "python3-venv"} {
		if !strings.Contains(whole(err), text) {
			t.Errorf("error lacks %q:\n%s", text, whole(err))
		}
	}
}

func TestAnEnvironmentThatWasMovedIsDamaged(t *testing.T) {
	home := filepath.Join(t.TempDir(), "cache")
	python, _ := fakePython(t, "3.11", "0")
	opt, _ := options(home, python)
	if _, err := worker.EnsureEnv(context.Background(), worker.GroupTriton, opt); err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Rename(home, moved); err != nil {
		t.Fatal(err)
	}
	if _, err := worker.LockedEnv(moved, worker.GroupTriton); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("error %v, want exit 11", err)
	}
}

func TestVersionsComeFromMetadata(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"bin", "lib/python3.11/site-packages/nvidia_pytriton-0.7.0.dist-info", "lib/python3.11/site-packages/torch-2.11.0+cpu.dist-info", "lib/python3.11/site-packages/torch"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "pyvenv.cfg"), []byte("include-system-site-packages = false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(root, "bin", "python") // not there: it must not be started
	got, err := worker.PackageVersions(context.Background(), python, "torch", "nvidia-pytriton", "Nvidia.PyTriton", "onnx")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"torch": "2.11.0+cpu", "nvidia-pytriton": "0.7.0", "Nvidia.PyTriton": "0.7.0"}, got); d != "" {
		t.Errorf("versions (-want +got):\n%s", d)
	}
}

func TestAnInterpreterOutsideAnEnvironmentIsAsked(t *testing.T) {
	base, err := filepath.EvalSymlinks(python(t))
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := worker.SitePackages(context.Background(), base)
	if err != nil || len(dirs) == 0 {
		t.Fatalf("folders %v, %v", dirs, err)
	}
	if _, err := worker.SitePackages(context.Background(), filepath.Join(t.TempDir(), "none")); failure.CodeOf(err) != failure.Missing {
		t.Errorf("no interpreter: %v, want exit 3", err)
	}
}
