package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/regular"
)

// FindPython returns the interpreter to use: explicit (of --python), else
// fromEnv (of TRTSHIP_PYTHON), else that of the locked environment below
// cacheHome (see CacheHome). What was named and is not there is an error, never
// a reason to look further. path is the PATH to search for a bare name.
func FindPython(explicit, fromEnv, cacheHome, path string) (string, error) {
	for _, named := range []struct{ value, by string }{{explicit, "--python"}, {fromEnv, "TRTSHIP_PYTHON"}} {
		if named.value == "" {
			continue
		}
		found, err := proc.Look(named.value, path)
		if err != nil {
			return "", failure.New(failure.Missing, "python %q of %s cannot be run: %w", named.value, named.by, err).
				WithHint("name an executable Python 3.11 or 3.12 that has torch, or leave it out and run `trtship env install`")
		}
		return found, nil
	}
	env, err := LockedEnv(cacheHome, GroupBase)
	if err != nil {
		return "", err
	}
	return env.Python, nil
}

// SitePackages returns the folders in which the interpreter's installed
// packages lie, in its order. A virtual environment is read without starting
// it; another interpreter is asked (without its site-packages being imported).
func SitePackages(ctx context.Context, python string) ([]string, error) {
	if dirs := venvPackages(python); dirs != nil {
		return dirs, nil
	}
	out, err := proc.Output(ctx, proc.Command{
		Path: python,
		Args: []string{"-I", "-c", "import sys,json; print(json.dumps([p for p in sys.path if p.endswith('-packages')]))"},
		Env:  []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"},
	})
	if err != nil {
		return nil, failure.New(failure.Missing, "ask %s for its packages: %w", python, err).
			WithHint("name a working Python with --python or TRTSHIP_PYTHON")
	}
	var dirs []string
	if err := json.Unmarshal([]byte(out), &dirs); err != nil {
		return nil, fmt.Errorf("ask %s for its packages: %w", python, err)
	}
	return dirs, nil
}

// venvPackages returns nil unless python lies in a virtual environment that
// does not look into the packages of its base.
func venvPackages(python string) []string {
	root := filepath.Dir(filepath.Dir(python))
	settings, err := regular.ReadFile(filepath.Join(root, "pyvenv.cfg"))
	if err != nil || systemSite.Match(settings) {
		return nil
	}
	dirs, err := filepath.Glob(filepath.Join(regular.Literal(root), "lib", "python3.*", "site-packages"))
	if err != nil || len(dirs) != 1 {
		return nil
	}
	return dirs
}

var systemSite = regexp.MustCompile(`(?im)^include-system-site-packages\s*=\s*true`)

// PackageVersions returns the versions of installed packages by the names asked
// for, from their metadata: nothing is imported, and for a virtual environment
// no Python is started. A package that is not there is left out.
func PackageVersions(ctx context.Context, python string, names ...string) (map[string]string, error) {
	dirs, err := SitePackages(ctx, python)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read packages of %s: %w", python, err)
		}
		for _, e := range entries {
			name, version, ok := distInfo(e.Name())
			if _, earlier := found[name]; ok && !earlier { // the first on sys.path is the one imported
				found[name] = version
			}
		}
	}
	versions := map[string]string{}
	for _, n := range names {
		if v, ok := found[normalName(n)]; ok {
			versions[n] = v
		}
	}
	return versions, nil
}

// distInfo splits "<name>-<version>.dist-info", the folder of a package's
// metadata, in which dashes of the name are underscores.
func distInfo(folder string) (name, version string, ok bool) {
	stem, ok := strings.CutSuffix(folder, ".dist-info")
	if !ok {
		return "", "", false
	}
	name, version, ok = strings.Cut(stem, "-")
	return normalName(name), version, ok
}

// normalName is the comparison form of a package's name (PEP 503).
func normalName(name string) string {
	return strings.ToLower(separators.ReplaceAllString(name, "-"))
}

var separators = regexp.MustCompile(`[-_.]+`)
