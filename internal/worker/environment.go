package worker

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
)

// Group is a set of packages that has an environment of its own.
type Group string

// The groups.
const (
	GroupBase   Group = "base"   // torch, onnx, onnxscript, onnxruntime, numpy: what stages run in
	GroupTriton Group = "triton" // the tritonserver inside nvidia-pytriton, without its dependencies
	GroupBench  Group = "bench"  // the peers and models of bench/, with torch
)

// Groups lists all groups.
var Groups = []Group{GroupBase, GroupTriton, GroupBench}

//go:embed env/*.lock
var locks embed.FS

// markerFile is written last into an environment: a folder without it is half
// made, whatever else is in it.
const markerFile = "trtship-env.json"

// Package is one line of a lock file.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Bytes   int64  `json:"bytes"` // of the download; 0 if unknown
	// Hashes are the SHA-256 of the files that pip may install it from, in
	// hexadecimal digits.
	Hashes []string `json:"-"`
}

// Env is an installed environment.
type Env struct {
	Group        Group  `json:"group"`
	Dir          string `json:"dir"`
	Python       string `json:"python"`        // absolute path of its interpreter
	SitePackages string `json:"site_packages"` // absolute path of its packages
	Version      string `json:"version"`       // of Python, such as 3.11
	LibPython    string `json:"lib_python"`    // folder of libpython3.x.so; empty if there is none
}

// CacheHome returns the folder that environments live in:
// $XDG_CACHE_HOME/trtship, else $HOME/.cache/trtship. As the XDG specification
// asks, a relative value counts as not set.
func CacheHome(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "trtship"), nil
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".cache", "trtship"), nil
	}
	return "", failure.New(failure.Usage, "find the cache folder: neither XDG_CACHE_HOME nor HOME is an absolute path").
		WithHint("set HOME, or XDG_CACHE_HOME, to a folder that can be written to; or name a Python with --python or TRTSHIP_PYTHON")
}

// LockedEnv returns the installed environment of a group. It reads one small
// file and starts nothing. An environment that is not there is exit 3.
func LockedEnv(cacheHome string, group Group) (Env, error) {
	dir, err := envDir(cacheHome, group)
	if err != nil {
		return Env{}, err
	}
	text, err := regular.ReadFile(filepath.Join(dir, markerFile))
	if err != nil {
		return Env{}, failure.New(failure.Missing, "the %s Python environment is not installed: %w", group, err).
			WithHint("run `trtship env install %s`, or name a Python that has the packages with --python or TRTSHIP_PYTHON", group)
	}
	var env Env
	if err := json.Unmarshal(text, &env); err != nil || env.Dir != dir {
		return Env{}, failure.New(failure.Artifact, "the %s Python environment is damaged or was moved", group).At(dir).
			WithHint("remove the folder and run `trtship env install %s`", group)
	}
	return env, nil
}

// envDir names the environment's folder after the digest of its lock file.
func envDir(cacheHome string, group Group) (string, error) {
	text, err := lockText(group)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return filepath.Join(cacheHome, fmt.Sprintf("env-%s-%s", group, hex.EncodeToString(sum[:])[:12])), nil
}

func lockText(group Group) ([]byte, error) {
	text, err := locks.ReadFile("env/" + string(group) + ".lock")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failure.New(failure.Usage, "there is no environment %q", group).
			WithHint("environments are %v", Groups)
	}
	return text, err
}

// LockDigest is the digest of a group's lock file.
func LockDigest(group Group) (artifact.Digest, error) {
	text, err := lockText(group)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return artifact.SumDigest(sum[:]), nil
}

// Packages lists what a group's lock file installs, in its order.
func Packages(group Group) ([]Package, error) {
	text, err := lockText(group)
	if err != nil {
		return nil, err
	}
	return parseLock(text)
}

// parseLock reads the lines "name==version \" and the comments
// "# name: <bytes> bytes" of a lock file; the hashes are for pip to check.
func parseLock(text []byte) ([]Package, error) {
	sizes := map[string]int64{}
	var packages []Package
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if m := lockSize.FindStringSubmatch(line); m != nil {
			n, err := strconv.ParseInt(m[2], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("read lock file: line %q: %w", line, err)
			}
			sizes[m[1]] = n
		} else if m := lockPin.FindStringSubmatch(line); m != nil {
			packages = append(packages, Package{Name: m[1], Version: m[2], Bytes: sizes[m[1]]})
		}
		if m := lockHash.FindStringSubmatch(line); m != nil && len(packages) > 0 {
			last := &packages[len(packages)-1]
			last.Hashes = append(last.Hashes, m[1])
		}
	}
	if len(packages) == 0 {
		return nil, errors.New("read lock file: no package in it")
	}
	return packages, nil
}

var (
	lockSize = regexp.MustCompile(`^# (\S+): (\d+) bytes$`)
	lockHash = regexp.MustCompile(`--hash=sha256:([0-9a-f]{64})`)
	lockPin  = regexp.MustCompile(`^([A-Za-z0-9._-]+)==(\S+)`)
)

// writeMarker completes an environment.
func writeMarker(env Env) error {
	text, err := json.MarshalIndent(env, "", "  ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(env.Dir, markerFile+".new")
	if err := os.WriteFile(temporary, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(env.Dir, markerFile))
}

// InstallOptions say where and with what an environment is made.
type InstallOptions struct {
	CacheHome string // see CacheHome
	// Python is the interpreter to build on; "" looks for python3.12, 3.11 and
	// python3 in Path.
	Python string
	Path   string // value of PATH
	// Env is the environment that pip sees, as NAME=value; see PipEnv.
	Env []string
	Log io.Writer // gets pip's output; may be nil
	// Announce is told what will be installed before anything is; may be nil.
	Announce func(group Group, dir string, packages []Package)
}

// PipEnv picks from environ (NAME=value) what pip needs: where the network and
// pip's own settings are, and nothing else.
func PipEnv(environ []string) []string {
	var picked []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		switch upper := strings.ToUpper(name); {
		case strings.HasPrefix(name, "PIP_"),
			upper == "HTTP_PROXY", upper == "HTTPS_PROXY", upper == "NO_PROXY", upper == "ALL_PROXY",
			name == "SSL_CERT_FILE", name == "SSL_CERT_DIR", name == "REQUESTS_CA_BUNDLE", name == "NETRC",
			name == "HOME", name == "XDG_CONFIG_HOME", name == "XDG_CACHE_HOME", name == "TMPDIR":
			picked = append(picked, pair)
		}
	}
	return picked
}

// EnsureEnv returns the environment of a group and installs it if it is not
// there yet. Two processes that ask at once do not race: one installs, the
// other waits. An interrupted installation is started again.
func EnsureEnv(ctx context.Context, group Group, opt InstallOptions) (Env, error) {
	if env, err := LockedEnv(opt.CacheHome, group); err == nil {
		return env, nil
	}
	if opt.Log == nil {
		opt.Log = io.Discard
	}
	return install(ctx, group, opt)
}
