package server

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// The python backend starts its stub through a shell that sees paths unquoted,
// and Python takes a colon for the end of a folder: a space in the path of a
// repository, or of a store, is enough that no model becomes ready. A server
// whose folders have such names gets them under other ones.

// plain reports whether a path means the same to a shell, to PATH and to the
// server.
func plain(path string) bool {
	return !strings.ContainsFunc(path, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/._-+@%,=", r)
	})
}

// alias gives the folders of a server plain names, through symbolic links in a
// folder that is returned; empty if they have such names already.
func (o *Options) alias(id string) (folder string, err error) {
	fine := plain(o.Scratch)
	for _, r := range o.Repositories {
		fine = fine && plain(r)
	}
	if fine {
		return "", nil
	}
	root := os.TempDir()
	if !plain(root) {
		root = "/tmp"
	}
	folder = filepath.Join(root, "trtship-"+id)
	if err := os.Mkdir(folder, 0o700); err != nil {
		return "", fmt.Errorf("make plain names for folders: %w", err)
	}
	link := func(name, to string) string {
		to, err2 := filepath.Abs(to)
		if err == nil {
			err = err2
		}
		path := filepath.Join(folder, name)
		if err2 := os.Symlink(to, path); err == nil {
			err = err2
		}
		return path
	}
	o.Scratch = link("scratch", o.Scratch)
	repositories := make([]string, len(o.Repositories))
	for i, r := range o.Repositories {
		repositories[i] = link("repository"+strconv.Itoa(i), r)
	}
	o.Repositories = repositories
	if err != nil {
		removeAlias(folder)
		return "", fmt.Errorf("make plain names for folders: %w", err)
	}
	return folder, nil
}

// aliasForm is the form of a folder's name that alias makes.
var aliasForm = regexp.MustCompile(`^trtship-[0-9a-f]{8}$`)

// removeAlias removes the links and never what they lead to.
func removeAlias(folder string) {
	if !aliasForm.MatchString(filepath.Base(folder)) {
		return
	}
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		if e.Type()&os.ModeSymlink != 0 {
			_ = os.Remove(filepath.Join(folder, e.Name()))
		}
	}
	_ = os.Remove(folder)
}
