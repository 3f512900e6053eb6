package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
)

// supported are the versions of Python that the lock files have hashes for,
// the preferred one first.
var supported = []string{"3.12", "3.11"}

// facts is what an interpreter says about itself.
type facts struct {
	Version   string `json:"version"`
	Machine   string `json:"machine"`
	LibPython string `json:"lib_python"`
	Venv      bool   `json:"venv"`
	EnsurePip bool   `json:"ensurepip"`
	Purelib   string `json:"purelib"`
}

const factsScript = `
import importlib.util, json, os, platform, sys, sysconfig
lib, name = sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or ""
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2], "machine": sys.platform + "-" + platform.machine(),
    "lib_python": lib if ".so" in name and os.path.exists(os.path.join(lib, name)) else "",
    "venv": importlib.util.find_spec("venv") is not None,
    "ensurepip": importlib.util.find_spec("ensurepip") is not None,
    "purelib": sysconfig.get_path("purelib"),
}))`

func install(ctx context.Context, group Group, opt InstallOptions) (Env, error) {
	dir, err := envDir(opt.CacheHome, group)
	if err != nil {
		return Env{}, err
	}
	packages, err := Packages(group)
	if err != nil {
		return Env{}, err
	}
	if err := os.MkdirAll(opt.CacheHome, 0o755); err != nil {
		return Env{}, failure.New(failure.Artifact, "make the cache folder: %w", err)
	}
	guard := flock.New(dir + ".lock")
	if _, err := guard.TryLockContext(ctx, 200*time.Millisecond); err != nil {
		return Env{}, failure.New(failure.Artifact, "wait for another installation: %w", err).At(dir + ".lock")
	}
	defer func() { _ = guard.Unlock() }()
	if env, err := LockedEnv(opt.CacheHome, group); err == nil {
		return env, nil // another process was faster
	}
	base, err := findBase(ctx, opt)
	if err != nil {
		return Env{}, err
	}
	if opt.Announce != nil {
		opt.Announce(group, dir, packages)
	}
	if err := os.RemoveAll(dir); err != nil { // left by an interrupted installation
		return Env{}, failure.New(failure.Artifact, "remove a half-made environment: %w", err)
	}
	return build(ctx, group, dir, base, opt)
}

func build(ctx context.Context, group Group, dir, base string, opt InstallOptions) (Env, error) {
	if err := runPython(ctx, base, opt, "-m", "venv", dir); err != nil {
		return Env{}, failure.New(failure.Missing, "make a virtual environment with %s: %w", base, err).
			WithHint("install the packages of your system that hold Python's venv and ensurepip (python3-venv on Debian)")
	}
	text, err := lockText(group)
	if err != nil {
		return Env{}, err
	}
	lock := filepath.Join(dir, string(group)+".lock")
	if err := os.WriteFile(lock, text, 0o644); err != nil {
		return Env{}, failure.New(failure.Artifact, "write lock file: %w", err)
	}
	python := filepath.Join(dir, "bin", "python")
	// The lock file is complete, so nothing is resolved here, and every file is
	// checked against its hash.
	err = runPython(ctx, python, opt, "-m", "pip", "install", "--require-hashes", "--no-deps", "--only-binary", ":all:",
		"--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-r", lock)
	if err != nil {
		return Env{}, failure.New(failure.Missing, "install the %s Python environment: %w", group, err).
			WithHint("pip's own output is above; check the network, pip's index settings and the free space of %s", filepath.Dir(dir))
	}
	f, err := ask(ctx, python)
	if err != nil {
		return Env{}, err
	}
	env := Env{Group: group, Dir: dir, Python: python, SitePackages: f.Purelib, Version: f.Version, LibPython: f.LibPython}
	if err := writeMarker(env); err != nil {
		return Env{}, failure.New(failure.Artifact, "complete the %s Python environment: %w", group, err)
	}
	return env, nil
}

func runPython(ctx context.Context, python string, opt InstallOptions, args ...string) error {
	return proc.Run(ctx, proc.Command{
		Path: python, Args: append([]string{"-I"}, args...), Env: append([]string{"PATH=" + opt.Path, "LANG=C.UTF-8"}, opt.Env...),
		Dir: opt.CacheHome, Stdout: opt.Log, Stderr: opt.Log,
	})
}

// findBase returns an interpreter that the lock files are made for.
func findBase(ctx context.Context, opt InstallOptions) (string, error) {
	names := []string{"python3.12", "python3.11", "python3"}
	if opt.Python != "" {
		names = []string{opt.Python}
	}
	var tried []string
	for _, name := range names {
		path, err := proc.Look(name, opt.Path)
		if err != nil {
			tried = append(tried, name+": "+reason(err))
			continue
		}
		f, err := ask(ctx, path)
		if err == nil {
			err = suits(f)
		}
		if err == nil {
			return path, nil
		}
		tried = append(tried, path+": "+reason(err))
	}
	e := failure.New(failure.Missing, "find a Python to build the environment on: none of %s suits", strings.Join(names, ", ")).
		WithHint("install Python %s with venv (python3-venv on Debian) and put it on PATH", strings.Join(supported, " or "))
	for _, t := range tried {
		e.With("tried", "%s", t)
	}
	return "", e
}

func reason(err error) string {
	if errors.Is(err, os.ErrNotExist) {
		return "not in PATH"
	}
	return err.Error()
}

func suits(f facts) error {
	switch {
	case f.Machine != "linux-x86_64":
		return fmt.Errorf("is for %s; the lock files are for linux-x86_64", f.Machine)
	case f.Version != supported[0] && f.Version != supported[1]:
		return fmt.Errorf("is Python %s; the lock files are for %s", f.Version, strings.Join(supported, " and "))
	case !f.Venv:
		return errors.New("lacks the module venv")
	case !f.EnsurePip:
		return errors.New("lacks the module ensurepip, which puts pip into a virtual environment")
	}
	return nil
}

// askTimeout bounds what an interpreter may take to tell about itself.
const askTimeout = time.Minute

func ask(ctx context.Context, python string) (facts, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("no answer within %s", askTimeout))
	defer cancel()
	out, err := proc.Output(ctx, proc.Command{
		Path: python, Args: []string{"-I", "-c", factsScript}, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"},
	})
	if err != nil {
		return facts{}, fmt.Errorf("ask %s about itself: %w", python, err)
	}
	var f facts
	if err := json.Unmarshal([]byte(out), &f); err != nil {
		return facts{}, fmt.Errorf("ask %s about itself: %w", python, err)
	}
	return f, nil
}
