package store

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"sort"

	"github.com/trtship/trtship/internal/artifact"
)

// dropEmpty removes the folders below dir that hold no file at any depth, and
// reports whether dir itself is one.
func dropEmpty(fsys FS, dir string) (empty bool, err error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return false, err
	}
	empty = true
	for _, e := range entries {
		if !e.IsDir() {
			empty = false
			continue
		}
		below := filepath.Join(dir, e.Name())
		none, err := dropEmpty(fsys, below)
		if err != nil {
			return false, err
		}
		if none {
			err = fsys.Remove(below)
		}
		if err != nil {
			return false, err
		}
		empty = empty && none
	}
	return empty, nil
}

// listFiles returns the slash-separated names of all files below dir, sorted.
func listFiles(fsys FS, dir string) ([]string, error) {
	info, err := fsys.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is no folder", dir)
	}
	var names []string
	if err := walk(fsys, dir, "", &names); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("folder %s holds no file", filepath.Base(dir))
	}
	sort.Strings(names)
	return names, nil
}

func walk(fsys FS, dir, rel string, names *[]string) error {
	entries, err := fsys.ReadDir(filepath.Join(dir, filepath.FromSlash(rel)))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if rel != "" {
			name = rel + "/" + name
		}
		if err := artifact.CheckPath(name); err != nil {
			return err
		}
		switch {
		case e.IsDir():
			if err := walk(fsys, dir, name, names); err != nil {
				return err
			}
		case e.Type() == 0:
			*names = append(*names, name)
		default:
			return fmt.Errorf("%s is a %s: artifacts hold regular files only", name, typeName(e.Type()))
		}
	}
	return nil
}

func typeName(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "pipe"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}
