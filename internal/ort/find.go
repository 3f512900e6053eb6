package ort

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
)

// Library is a libonnxruntime on this machine.
type Library struct {
	Path    string `json:"path"`
	Version string `json:"version"` // e.g. "1.30.0"; from the file's name, or asked of the library
	Source  string `json:"source"`  // where it was found, for doctor
}

// Places says where to look, in this order.
type Places struct {
	File       string   // TRTSHIP_ORT_LIB
	Python     string   // absolute path of the chosen interpreter; its onnxruntime package is used
	LoaderPath []string // the folders of LD_LIBRARY_PATH
}

// systemFolders are where the dynamic loader looks anyway.
var systemFolders = []string{
	"/usr/local/lib", "/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/lib", "/usr/lib64", "/lib64", "/opt/onnxruntime/lib",
}

// Find returns the first libonnxruntime. It is a failure with code Missing if
// there is none, or if the file that File names does not exist.
func Find(ctx context.Context, p Places) (Library, error) {
	if p.File != "" {
		path, err := filepath.Abs(p.File)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			return Library{}, failure.New(failure.Missing, "find ONNX Runtime: TRTSHIP_ORT_LIB names %s: %w", p.File, err).
				WithHint("set TRTSHIP_ORT_LIB to the libonnxruntime.so of a release, or unset it")
		}
		return identify(ctx, path, "TRTSHIP_ORT_LIB")
	}
	if p.Python != "" {
		for _, dir := range pythonFolders(p.Python) {
			if path := newestLibrary(filepath.Join(dir, "onnxruntime", "capi")); path != "" {
				return identify(ctx, path, "onnxruntime package of "+p.Python)
			}
		}
	}
	for _, dir := range p.LoaderPath {
		if path := newestLibrary(dir); path != "" && filepath.IsAbs(dir) {
			return identify(ctx, path, "LD_LIBRARY_PATH")
		}
	}
	for _, dir := range systemFolders {
		if path := newestLibrary(dir); path != "" {
			return identify(ctx, path, dir)
		}
	}
	return Library{}, errNoLibrary()
}

func errNoLibrary() *failure.Error {
	return failure.New(failure.Missing, "find ONNX Runtime: there is no libonnxruntime.so on this machine").
		WithHint("run `trtship env install`, or set TRTSHIP_ORT_LIB to the libonnxruntime.so of a release")
}

// pythonFolders are the package folders of an interpreter, without running it:
// those of its environment, and those beside the binary that a link leads to.
func pythonFolders(python string) []string {
	binaries := []string{python}
	if real, err := filepath.EvalSymlinks(python); err == nil && real != python {
		binaries = append(binaries, real)
	}
	var dirs []string
	for i, b := range binaries {
		prefix := filepath.Dir(filepath.Dir(b))
		if i > 0 && !sharesSystemPackages(filepath.Dir(filepath.Dir(python))) {
			break // an isolated environment does not see its base's packages
		}
		for _, pattern := range []string{"lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages", "local/lib/python3*/dist-packages"} {
			found, _ := filepath.Glob(filepath.Join(regular.Literal(prefix), pattern))
			dirs = append(dirs, found...)
		}
	}
	return dirs
}

// sharesSystemPackages reads pyvenv.cfg; a folder without one is no environment.
func sharesSystemPackages(prefix string) bool {
	f, err := regular.Open(filepath.Join(prefix, "pyvenv.cfg"))
	if err != nil {
		return true
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), "=")
		if strings.TrimSpace(key) == "include-system-site-packages" {
			return strings.EqualFold(strings.TrimSpace(value), "true")
		}
	}
	return false
}

// newestLibrary returns libonnxruntime.so, or the highest version of
// libonnxruntime.so.N in a folder.
func newestLibrary(dir string) string {
	found, _ := filepath.Glob(filepath.Join(regular.Literal(dir), "libonnxruntime.so*"))
	if len(found) == 0 {
		return ""
	}
	sort.Slice(found, func(i, j int) bool {
		if len(found[i]) != len(found[j]) {
			return len(found[i]) > len(found[j]) // the full version is the longest name
		}
		return found[i] > found[j]
	})
	return found[0]
}

var versionSuffix = regexp.MustCompile(`\.so\.(\d+\.\d+\.\d+[^/]*)$`)

// identify reads the version off the file's name, or asks the library itself.
func identify(ctx context.Context, path, source string) (Library, error) {
	lib := Library{Path: path, Source: source}
	for _, name := range []string{path, resolved(path)} {
		if m := versionSuffix.FindStringSubmatch(name); m != nil {
			lib.Version = m[1]
			return lib, nil
		}
	}
	v, err := askVersion(ctx, path)
	if err != nil {
		return Library{}, failure.New(failure.Missing, "find ONNX Runtime: %s (%s) cannot be loaded: %w", path, source, err).
			WithHint("set TRTSHIP_ORT_LIB to a libonnxruntime.so of this machine's architecture")
	}
	lib.Version = v
	return lib, nil
}

func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// askVersion loads the library in a child and asks it.
func askVersion(ctx context.Context, path string) (string, error) {
	s := &Session{waiting: map[int64]chan reply{}, model: path}
	if err := s.start(ctx); err != nil {
		return "", err
	}
	defer s.Close()
	a, err := s.do(ctx, request{Op: opVersion, Load: &loadRequest{Library: path}}, "")
	return a.Version, err
}
