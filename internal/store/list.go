package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
)

// Item is one artifact of the store. Err is set if its record cannot be read.
type Item struct {
	artifact.Record
	Dir  string // of its files
	Runs []string
	Err  error
}

// Look lists the artifacts of the store at root without opening it: nothing is
// locked, swept or made, and a root that is not there is an error.
func Look(root string) ([]Item, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, failure.New(failure.Artifact, "list store: %w", err).At(root)
	}
	return (&Store{root: abs, fs: OS{}, now: time.Now}).List()
}

// List returns the artifacts by kind and id.
func (s *Store) List() ([]Item, error) {
	kinds, err := s.fs.ReadDir(s.root)
	if err != nil {
		return nil, failure.New(failure.Artifact, "list store: %w", err).At(s.root)
	}
	users, err := s.users()
	if err != nil {
		return nil, err
	}
	var items []Item
	for _, k := range kinds {
		if !k.IsDir() || reserved[k.Name()] {
			continue
		}
		entries, err := s.fs.ReadDir(filepath.Join(s.root, k.Name()))
		if err != nil {
			return nil, failure.New(failure.Artifact, "list store: %w", err).At(s.root)
		}
		for _, e := range entries {
			dir := filepath.Join(s.root, k.Name(), e.Name())
			rec, err := s.readRecord(dir)
			if err == nil && (string(rec.Kind) != k.Name() || !named(rec, e.Name())) {
				err = fmt.Errorf("its record is that of %s", rec.ID())
			}
			if err != nil {
				rec = artifact.Record{Kind: artifact.Kind(k.Name()), Meta: map[string]string{"name": e.Name()}}
			}
			items = append(items, Item{Record: rec, Dir: filepath.Join(dir, filesDir), Runs: users[recordRef(rec)], Err: err})
		}
	}
	sort.Slice(items, func(i, j int) bool { return items[i].Dir < items[j].Dir })
	return items, nil
}

func named(rec artifact.Record, name string) bool {
	for _, n := range names(rec) {
		if n == name {
			return true
		}
	}
	return false
}

// Find returns the only artifact whose id, digest or folder name begins with s.
func (s *Store) Find(prefix string) (Item, error) {
	items, err := s.List()
	if err != nil {
		return Item{}, err
	}
	var found []Item
	for _, it := range items {
		name := filepath.Base(filepath.Dir(it.Dir))
		switch {
		case name == prefix || string(it.Digest) == prefix:
			return it, nil
		case prefix != "" && (strings.HasPrefix(name, prefix) || strings.HasPrefix(string(it.Digest), "sha256:"+prefix)):
			found = append(found, it)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	e := failure.New(failure.Artifact, "find artifact %q: there is none in the store", prefix).WithHint("`trtship artifacts ls` lists them.")
	if len(found) > 1 {
		e = failure.New(failure.Artifact, "find artifact %q: %d artifacts begin with it", prefix, len(found)).WithHint("Give more digits.")
		for _, it := range found {
			e.With("artifact", "%s", filepath.Base(filepath.Dir(it.Dir)))
		}
	}
	return Item{}, e
}

// Problem is something in the store that is not as it should be.
type Problem struct {
	Path string `json:"path"` // relative to the store
	Text string `json:"text"`
}

// Verified is what Verify found.
type Verified struct {
	Artifacts int       `json:"artifacts"`
	Entries   int       `json:"entries"`
	Stale     int       `json:"stale"` // entries whose artifact was damaged and moved aside; their stages run again
	Bytes     int64     `json:"bytes"`
	Problems  []Problem `json:"problems"`
}

// Verify hashes every artifact, reads every cache entry, and lists whatever is
// neither. It changes nothing. Evidence in the damaged folder is no problem,
// nor is the scratch of runs that are under way or died: nobody reads it.
func (s *Store) Verify(ctx context.Context) (Verified, error) {
	v := Verified{Problems: []Problem{}}
	items, err := s.List()
	if err != nil {
		return v, err
	}
	for _, it := range items {
		if err := s.verifyItem(ctx, it, &v); err != nil {
			return v, err
		}
	}
	if err := s.verifyEntries(&v); err != nil {
		return v, err
	}
	return v, s.verifyStray(&v)
}

func (s *Store) rel(path string) string {
	rel, err := filepath.Rel(s.root, path)
	if err != nil {
		return path
	}
	return rel
}

func (s *Store) verifyItem(ctx context.Context, it Item, v *Verified) error {
	dir := filepath.Dir(it.Dir)
	v.Artifacts++
	v.Bytes += it.Size
	if it.Err != nil {
		v.add(s.rel(dir), "record cannot be used: "+it.Err.Error())
		return nil
	}
	err := s.check(ctx, it.Record, dir)
	if d, ok := errors.AsType[*Damage](err); ok {
		for _, p := range d.Problems {
			v.add(s.rel(dir), p)
		}
		return nil
	}
	if err != nil {
		return failure.New(failure.Artifact, "verify %s: %w", it.ID(), err)
	}
	return nil
}

func (v *Verified) add(path, text string) { v.Problems = append(v.Problems, Problem{path, text}) }

func (s *Store) verifyEntries(v *Verified) error {
	return s.eachEntry(func(path string, e *Entry, err error) error {
		v.Entries++
		if err != nil {
			v.add(s.rel(path), "cache entry cannot be read: "+err.Error())
			return nil
		}
		if s.entryPath(e.Stage, e.Key) != path {
			v.add(s.rel(path), "cache entry is that of another key")
		}
		if slices.ContainsFunc(e.Artifacts, func(rec artifact.Record) bool { _, ok := s.find(rec); return !ok }) {
			v.Stale++
		}
		return nil
	})
}

// eachEntry calls fn for every file that could be a cache entry.
func (s *Store) eachEntry(fn func(path string, e *Entry, err error) error) error {
	stages, err := s.fs.ReadDir(filepath.Join(s.root, cacheDir))
	if err != nil {
		return failure.New(failure.Artifact, "list cache: %w", err).At(s.root)
	}
	for _, st := range stages {
		dir := filepath.Join(s.root, cacheDir, st.Name())
		files, err := s.fs.ReadDir(dir)
		if err != nil {
			return failure.New(failure.Artifact, "list cache: %w", err).At(dir)
		}
		for _, f := range files {
			path := filepath.Join(dir, f.Name())
			text, err := s.readAll(path)
			var e *Entry
			if err == nil {
				e, err = parseEntry(text)
			}
			if err := fn(path, e, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// verifyStray lists files where only folders belong.
func (s *Store) verifyStray(v *Verified) error {
	entries, err := s.fs.ReadDir(s.root)
	if err != nil {
		return failure.New(failure.Artifact, "list store: %w", err).At(s.root)
	}
	for _, e := range entries {
		if !e.IsDir() && e.Name() != formatFile {
			v.add(e.Name(), "does not belong to the store")
		}
	}
	return nil
}
