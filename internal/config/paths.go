package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
)

// holdsFile is the value of the tag holds where a folder is a mistake.
const holdsFile = "file"

// inputPath is one path of an input.
type inputPath struct {
	key, path string
	holds     string // its tag holds
	element   bool   // of a list or a map
}

// resolvePaths makes input paths absolute, relative to the file's folder.
func (c *Config) resolvePaths() {
	c.inputPaths(func(p inputPath) string {
		if p.path == "" || filepath.IsAbs(p.path) {
			return p.path
		}
		return filepath.Join(c.Dir, filepath.FromSlash(p.path))
	})
}

// oddPaths finds input paths at which something else is than what is read there.
// Whoever opens a pipe waits for a writer, torch as well as we.
func (c *Config) oddPaths() Problems {
	return c.pathProblems(func(p inputPath) error {
		if err := regular.Check(p.path); err != nil {
			return err
		}
		if info, err := os.Stat(p.path); err == nil && info.IsDir() && p.holds == holdsFile {
			return fmt.Errorf("%s is a folder; name the file", p.path)
		}
		return nil
	})
}

// CheckFiles looks whether what the configuration names is there and can be
// read; only picks paths by key, nil takes all of them. What is not is one
// failure.Artifact that names each key. Load does not look: most commands read
// none of these files.
func (c *Config) CheckFiles(only func(key, path string) bool) error {
	p := c.pathProblems(func(in inputPath) error {
		if only != nil && !only(in.key, in.path) {
			return nil
		}
		return readable(in.path)
	})
	if len(p) == 0 {
		return nil
	}
	e := failure.New(failure.Artifact, "%s", p[0].message()).At(p[0].Where)
	if len(p) > 1 {
		e = failure.New(failure.Artifact, "%s names %d files that cannot be read", c.Path, len(p))
		for _, one := range p {
			e.With(one.Where, "%s", one.message())
		}
	}
	e.Err = p
	return e.WithHint("input paths are relative to the configuration file")
}

// readable says why nothing can be read at path.
func readable(path string) error {
	info, err := os.Stat(path)
	if err == nil {
		if err = regular.Check(path); err != nil {
			return err
		}
		if !info.IsDir() { // whether a folder's files can be read shows when they are
			var f *os.File
			if f, err = regular.Open(path); err == nil {
				return f.Close()
			}
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is not there", path)
	case err != nil:
		cause := err
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			cause = p.Err
		}
		return fmt.Errorf("%s cannot be read: %w", path, cause)
	}
	return nil
}

// pathProblems gathers what is wrong with input paths that are set.
func (c *Config) pathProblems(wrong func(inputPath) error) Problems {
	var out Problems
	c.inputPaths(func(in inputPath) string {
		if in.path == "" {
			return in.path
		}
		if err := wrong(in); err != nil {
			p := Problem{Where: c.Where(in.key), Path: in.key, Text: err.Error()}
			if _, set := c.Overrides[in.key]; !set {
				p.Line = c.Lines[in.key]
			}
			out = append(out, p)
		}
		return in.path
	})
	return out
}

// inputPaths replaces every path of an input by what f makes of it.
func (c *Config) inputPaths(f func(inputPath) string) {
	pathsIn(reflect.ValueOf(c).Elem(), "", f)
}

func pathsIn(v reflect.Value, at string, f func(inputPath) string) {
	for _, m := range membersOf(v.Type()) {
		field, key := v.FieldByIndex(m.index), join(at, m.key)
		if m.tag.Get("path") == "input" {
			in := inputPath{holds: m.tag.Get("holds"), element: field.Kind() != reflect.String}
			replacePaths(field, key, func(key, path string) string {
				in.key, in.path = key, path
				return f(in)
			})
			continue
		}
		if field.Kind() == reflect.Pointer && !field.IsNil() {
			field = field.Elem()
		}
		if field.Kind() == reflect.Struct && !isScalar(field.Type()) {
			pathsIn(field, key, f)
		}
	}
}

func replacePaths(v reflect.Value, key string, f func(key, path string) string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(f(key, v.String()))
	case reflect.Slice:
		for i := range v.Len() {
			v.Index(i).SetString(f(join(key, strconv.Itoa(i)), v.Index(i).String()))
		}
	case reflect.Map:
		for _, k := range sortedKeys(v.Interface().(map[string]string)) {
			v.SetMapIndex(reflect.ValueOf(k), reflect.ValueOf(f(join(key, k), v.MapIndex(reflect.ValueOf(k)).String())))
		}
	default:
		panic("config: no path in " + v.Type().String())
	}
}
